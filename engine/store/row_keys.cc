// Keys are text parts separated by NUL, which occurs in no run id, task name or path.
#include "engine/store/row_keys.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace flow {

namespace {

std::string joined(std::initializer_list<std::string_view> parts) {
  std::string key;
  for (std::string_view part : parts) {
    if (!key.empty()) key += '\0';
    key += part;
  }
  return key;
}

std::string big_endian(uint64_t number, int bytes) {
  std::string out;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8)
    out += static_cast<char>(number >> shift);
  return out;
}

uint64_t from_big_endian(std::string_view bytes) {
  uint64_t number = 0;
  for (char c : bytes) number = number << 8 | static_cast<unsigned char>(c);
  return number;
}

constexpr size_t kAttemptNumberBytes = 4;
constexpr size_t kMetricLengthBytes = 2, kMetricNumberBytes = 8;

}  // namespace

std::string journal_key(uint64_t sequence) { return big_endian(sequence, 8); }

std::string run_key(const std::string& run) { return run; }

std::string cache_key(const Digest& key) { return std::string(key.view()); }

std::string log_prefix(const std::string& run) { return joined({run, ""}); }

std::string log_prefix(const std::string& run, uint32_t unit) {
  return joined({run, fmt::format("{:08x}", unit), ""});
}

std::string log_key(const std::string& run, uint32_t unit, uint32_t attempt, uint64_t n) {
  return log_prefix(run, unit) + big_endian(attempt, 4) + big_endian(n, 8);
}

std::string archive_key(const std::string& run) { return joined({"folded", run, ""}); }

std::string step_prefix(const std::string& run, const std::string& task, const Digest& key) {
  return joined({"step", run, task, key.hex(), ""});
}

std::string warning_prefix(const std::string& run, uint32_t unit, uint32_t attempt) {
  return joined({"warning", run, fmt::format("{:08x}", unit), fmt::format("{:08x}", attempt), ""});
}

std::string warning_key(const std::string& run, uint32_t unit, uint32_t attempt, uint64_t n) {
  return warning_prefix(run, unit, attempt) + big_endian(n, 8);
}

std::string attempt_prefix(const std::string& run) { return joined({"attempt", run, ""}); }

std::string attempt_key(const std::string& run, uint32_t unit, uint32_t attempt) {
  return attempt_prefix(run) + big_endian(unit, kAttemptNumberBytes) +
         big_endian(attempt, kAttemptNumberBytes);
}

std::optional<uint32_t> unit_of_attempt_key(std::string_view prefix, std::string_view key) {
  bool is_key = key.starts_with(prefix) && key.size() == prefix.size() + 2 * kAttemptNumberBytes;
  if (!is_key) return std::nullopt;
  return static_cast<uint32_t>(from_big_endian(key.substr(prefix.size(), kAttemptNumberBytes)));
}

std::string checkpoint_key(const std::string& run, const std::string& task, const Digest& key) {
  return joined({"checkpoint", run, task, key.hex()});
}

std::string request_key(const std::string& request) { return joined({"request", request}); }

std::string spool_key(const std::string& worker) { return joined({"spool", worker}); }

std::string head_key(const std::string& worker) { return joined({"head", worker}); }

std::string launcher_key() { return "launcher"; }

std::string leader_key() { return "leader"; }

std::string inputs_key(const std::string& run) { return joined({"inputs", run, ""}); }

std::string served_key(const std::string& run) { return joined({"served", run, ""}); }

std::string detached_key(const std::string& run) { return joined({"detached", run, ""}); }

std::string notify_key(const std::string& run) { return joined({"notify", run, ""}); }

std::string notification_prefix(const std::string& run) {
  return run.empty() ? joined({"notification", ""}) : joined({"notification", run, ""});
}

std::string notification_key(const std::string& run, int64_t finished_ms) {
  return notification_prefix(run) + big_endian(static_cast<uint64_t>(finished_ms), 8);
}

std::string param_digest_key(const std::string& path) { return joined({"file", path}); }

std::string remote_copy_key(std::string_view url) { return joined({"url", sha256(url).hex()}); }

std::string metric_prefix(const std::string& run) { return joined({run, ""}); }

std::string metric_prefix(const std::string& run, const Digest& key) {
  return metric_prefix(run) + std::string(key.view());
}

std::string metric_prefix(const std::string& run, const Digest& key, std::string_view task) {
  return metric_prefix(run, key) + std::string(task) + '\0';
}

// The name of a metric may have any bytes, so its length comes before it.
std::string metric_series_key(std::string_view task_prefix, std::string_view metric) {
  std::string_view name = metric.substr(0, UINT16_MAX);
  return std::string(task_prefix) + big_endian(name.size(), kMetricLengthBytes) + std::string(name);
}

std::string metric_point_key(std::string_view series_key, uint64_t number) {
  return std::string(series_key) + big_endian(number, kMetricNumberBytes);
}

std::optional<MetricKey> parse_metric_key(std::string_view key) {
  size_t run_end = key.find('\0');
  if (run_end == std::string_view::npos) return std::nullopt;
  size_t task_at = run_end + 1 + Digest().bytes.size();
  size_t task_end = key.find('\0', std::min(task_at, key.size()));
  if (task_end == std::string_view::npos) return std::nullopt;
  size_t length_at = task_end + 1, name_at = length_at + kMetricLengthBytes;
  if (name_at > key.size()) return std::nullopt;
  size_t length = from_big_endian(key.substr(length_at, kMetricLengthBytes));
  if (length > key.size() - name_at) return std::nullopt;
  std::string_view number = key.substr(name_at + length);
  if (!number.empty() && number.size() != kMetricNumberBytes) return std::nullopt;
  MetricKey parsed;
  parsed.task = key.substr(task_at, task_end - task_at);
  parsed.metric = key.substr(name_at, length);
  parsed.series = key.substr(0, name_at + length);
  if (!number.empty()) parsed.number = from_big_endian(number);
  return parsed;
}

std::optional<std::string> run_of_key(Family family, std::string_view key) {
  auto part = [](std::string_view text) { return std::string(text.substr(0, text.find('\0'))); };
  if (family == Family::logs || family == Family::metrics) return part(key);
  size_t first = key.find('\0');
  if (family != Family::kv || first == std::string_view::npos) return std::nullopt;
  std::string_view kind = key.substr(0, first);
  bool is_of_run = kind == "folded" || kind == "step" || kind == "checkpoint" || kind == "inputs" ||
                   kind == "warning" || kind == "served" || kind == "detached" ||
                   kind == "attempt" || kind == "notify" || kind == "notification";
  if (!is_of_run) return std::nullopt;
  return part(key.substr(first + 1));
}

bool is_progress_key(std::string_view key) {
  std::string_view kind = key.substr(0, key.find('\0'));
  return kind == "step" || kind == "checkpoint";
}

}  // namespace flow
