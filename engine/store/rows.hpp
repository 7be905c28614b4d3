// Rows that are read without a replay: runs, cache entries, log lines. Encoded by rows.proto.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/store/store.hpp"
#include "flow/flow.hpp"

namespace flow {

struct RunRecord {
  std::string id, name, pipeline, status;
  int64_t submitted = 0, finished = 0;  // milliseconds since the Unix epoch
  Counts counts;
  uint64_t retried = 0;
  std::string script;     // absolute path
  std::string directory;  // working directory of the submission
  std::string params;     // canonical bytes
  bool has_result = false;
  Digest result, plan_digest, bundle_digest;
  bool fresh = false, fail_fast = false;
};

struct CacheEntry {
  Digest result;
  bool has_fragment = false;
  Digest fragment;        // a dynamic task's list of calls
  std::string run;        // the run that made it
  bool has_wait = false;  // the attempt called ctx:wait
  bool is_file = false;   // the result is a file under objects/, which a user may have removed
  uint64_t size = 0;      // size of the result in bytes if it is a file
  bool refers_to_blobs = false;  // the result refers to blobs: tensors or files
  std::string value;             // a short result itself: a cache hit needs no second lookup
};

struct LogRow {
  uint32_t attempt = 0;
  uint32_t stream = 0;  // 0 ctx:log, 1 stdout, 2 stderr
  int64_t at = 0;       // milliseconds since the Unix epoch
  std::string text;
  uint32_t rank = 0;  // of a gang
};

/// A point of a series (`ctx:metric`).
struct MetricRow {
  int64_t step = 0;
  double value = 0;
  int64_t at = 0;        // milliseconds since the Unix epoch
  int64_t assigned = 0;  // when the attempt that reported it was assigned, by the state's clock
  uint32_t attempt = 0;
};

/// An attempt of a task instance, as it ended. Below 0: unknown.
struct AttemptRow {
  uint32_t attempt = 0;
  int64_t assigned = 0, ended = 0;  // milliseconds since the Unix epoch
  int64_t queue_us = -1;            // before it was assigned
  int64_t stage_us = -1;            // after that, before its function began
  int64_t commit_us = -1;           // from the end of its function to its own end
  std::string worker;               // of rank 0
  std::string outcome;              // succeeded, failed, waiting, stopped, running
  std::string cause;                // of a failed one, as core::cause_name; else ""
  std::vector<std::string> gpus;    // UUIDs, of rank 0
  uint32_t ranks = 1;
};

std::string encode_run_record(const RunRecord& record);
Result<RunRecord> decode_run_record(std::string_view bytes);
std::string encode_cache_entry(const CacheEntry& entry);
Result<CacheEntry> decode_cache_entry(std::string_view bytes);
std::string encode_log(const LogRow& row);
Result<LogRow> decode_log(std::string_view bytes);
std::string encode_metric(const MetricRow& row);
Result<MetricRow> decode_metric(std::string_view bytes);
std::string encode_attempt(const AttemptRow& row);
Result<AttemptRow> decode_attempt(std::string_view bytes);
/// How many points of a thinned series are one kept point: 1 or more.
std::string encode_metric_stride(uint64_t stride);
Result<uint64_t> decode_metric_stride(std::string_view bytes);

}  // namespace flow
