// Keys of rows in the column families. Every key of a run starts with a kind and the run's id, so
// that gc finds it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/store/store.hpp"

namespace flow {

std::string journal_key(uint64_t sequence);  // big-endian: keys sort by number
std::string run_key(const std::string& run);
std::string cache_key(const Digest& key);
std::string log_prefix(const std::string& run);
std::string log_prefix(const std::string& run, uint32_t unit);
std::string log_key(const std::string& run, uint32_t unit, uint32_t attempt, uint64_t n);
std::string archive_key(const std::string& run);  // kv: a finished run, frozen
/// kv: steps are step_prefix + name.
std::string step_prefix(const std::string& run, const std::string& task, const Digest& key);
/// kv: flow's warnings in an attempt, one row each: warning_prefix + a number.
std::string warning_prefix(const std::string& run, uint32_t unit, uint32_t attempt);
std::string warning_key(const std::string& run, uint32_t unit, uint32_t attempt, uint64_t n);
/// kv: the ended attempts of a run, in the order of units and then attempts.
std::string attempt_prefix(const std::string& run);
std::string attempt_key(const std::string& run, uint32_t unit, uint32_t attempt);
/// The unit in a key with that prefix; nothing if the key is not one of these.
std::optional<uint32_t> unit_of_attempt_key(std::string_view prefix, std::string_view key);
std::string checkpoint_key(const std::string& run, const std::string& task, const Digest& key);
std::string request_key(const std::string& request);  // kv: the run of a request
/// kv: the last committed report of this worker: its spool's id, a newline, a number.
std::string spool_key(const std::string& worker);
std::string head_key(const std::string& worker);  // kv: address of the head that it joined last
std::string
launcher_key();  // kv: which nodes are requested and where, in words; "" if none are requested
/// kv: the head whose workers outlive the engine: `flow head` or `--on slurm`.
std::string leader_key();
/// meta: how far the state's clock was ahead of the wall clock at the last write.
constexpr const char* kClockKey = "clock";
std::string inputs_key(const std::string& run);  // kv: where the run's inputs were read
std::string served_key(const std::string& run);  // kv: exists if the run has served
/// kv: whether the run continues without the process that started it, and its options;
/// detached_runs.hpp.
std::string detached_key(const std::string& run);
std::string notify_key(const std::string& run);  // kv: the run's NotifySettings
/// kv: the notifications of a run, pending and sent; of all runs if `run` is "".
std::string notification_prefix(const std::string& run);
std::string notification_key(const std::string& run, int64_t finished_ms);
std::string param_digest_key(const std::string& path);  // kv: a file's digest by its fingerprint
std::string remote_copy_key(std::string_view url);      // kv: the newest copy of a URL's content

/// metrics: the points of a task instance, which its cache key and its name identify.
std::string metric_prefix(const std::string& run);
std::string metric_prefix(const std::string& run, const Digest& key);
std::string metric_prefix(const std::string& run, const Digest& key, std::string_view task);
/// metrics: a series. The row with this key says how it was thinned, if it was.
std::string metric_series_key(std::string_view task_prefix, std::string_view metric);
/// metrics: a point; its number grows from point to point.
std::string metric_point_key(std::string_view series_key, uint64_t number);
struct MetricKey {
  std::string task, metric;
  std::string series;              // its metric_series_key
  std::optional<uint64_t> number;  // of a point; nothing for the row of the series
};
/// Nothing if it is not a key of metrics.
std::optional<MetricKey> parse_metric_key(std::string_view key);

/// The run to which a kv, logs or metrics key belongs; nothing for other keys.
std::optional<std::string> run_of_key(Family family, std::string_view key);
/// Whether a kv key is that of a step or a checkpoint, whose value holds digests.
bool is_progress_key(std::string_view key);

}  // namespace flow
