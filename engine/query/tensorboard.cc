#include "engine/query/tensorboard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "engine/base/files.hpp"
#include "engine/base/throwing.hpp"
#include "engine/store/checksum.hpp"
#include "flow/tags.hpp"

namespace flow {

namespace {

// Fields of tensorflow.Event, of its Summary, and of a Summary.Value.
constexpr uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;
constexpr uint32_t kSummaryValue = 1;
constexpr uint32_t kTag = 1, kSimpleValue = 2;

/// The few kinds of protobuf fields that an event has.
class Message {
 public:
  void put_varint(uint32_t field, uint64_t value) {
    put_head(field, 0);
    put_number(value);
  }
  void put_double(uint32_t field, double value) {
    put_head(field, 1);
    put_fixed(std::bit_cast<uint64_t>(value), sizeof value);
  }
  void put_float(uint32_t field, float value) {
    put_head(field, 5);
    put_fixed(std::bit_cast<uint32_t>(value), sizeof value);
  }
  void put_bytes(uint32_t field, std::string_view value) {
    put_head(field, 2);
    put_number(value.size());
    bytes_ += value;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void put_head(uint32_t field, uint32_t kind) { put_number(field << 3 | kind); }
  void put_number(uint64_t number) {
    for (; number >= 0x80; number >>= 7) bytes_ += static_cast<char>(number | 0x80);
    bytes_ += static_cast<char>(number);
  }
  void put_fixed(uint64_t number, size_t size) {
    for (size_t i = 0; i < size; i++) bytes_ += static_cast<char>(number >> (8 * i));
  }
  std::string bytes_;
};

std::string little_endian(uint64_t number, size_t size) {
  std::string bytes;
  for (size_t i = 0; i < size; i++) bytes += static_cast<char>(number >> (8 * i));
  return bytes;
}

// TFRecord masks checksums, because a record may contain other records.
std::string masked_checksum(std::string_view bytes) {
  constexpr uint32_t kMaskDelta = 0xa282ead8;
  return little_endian(static_cast<uint32_t>(std::rotr(crc32c(bytes), 15) + kMaskDelta), 4);
}

/// The nearest float; what is too large for one is infinite.
float rounded(double value) {
  if (std::isfinite(value) && std::fabs(value) > static_cast<double>(FLT_MAX))
    return value > 0 ? HUGE_VALF : -HUGE_VALF;
  return static_cast<float>(value);
}

std::string event_of(const std::string& metric, const MetricPoint& point) {
  Message value, summary, event;
  value.put_bytes(kTag, metric);
  value.put_float(kSimpleValue, rounded(point.value));
  summary.put_bytes(kSummaryValue, value.bytes());
  event.put_double(kWallTime, static_cast<double>(point.at_ms) / 1000);
  event.put_varint(kStep, static_cast<uint64_t>(point.step));
  event.put_bytes(kSummary, summary.bytes());
  return event.bytes();
}

}  // namespace

std::string tensorboard_record(std::string_view content) {
  std::string length = little_endian(content.size(), 8);
  return length + masked_checksum(length) + std::string(content) + masked_checksum(content);
}

std::string tensorboard_events(const std::vector<const MetricSeries*>& series) {
  std::vector<std::pair<const MetricSeries*, const MetricPoint*>> points;
  for (const MetricSeries* each : series) {
    for (const MetricPoint& point : each->points) points.emplace_back(each, &point);
  }
  std::ranges::stable_sort(points, {}, [](const auto& point) { return point.second->step; });
  int64_t first_ms = points.empty() ? 0 : points.front().second->at_ms;
  for (const auto& [each, point] : points) first_ms = std::min(first_ms, point->at_ms);
  Message version;
  version.put_double(kWallTime, static_cast<double>(first_ms) / 1000);
  version.put_bytes(kFileVersion, "brain.Event:2");
  std::string events = tensorboard_record(version.bytes());
  for (const auto& [each, point] : points)
    events += tensorboard_record(event_of(each->metric, *point));
  return events;
}

std::vector<std::string> write_tensorboard_files(const std::string& directory, const RunInfo& run,
                                                 const std::vector<MetricSeries>& series) {
  std::map<std::string, std::vector<const MetricSeries*>> by_task;
  for (const MetricSeries& each : series)
    by_task[tagged_name(each.task, each.tag)].push_back(&each);
  std::vector<std::string> paths;
  for (const auto& [task, of_task] : by_task) {
    std::string folder = directory + "/" + task;
    ok_or_throw(make_dirs(folder, 0777));
    std::string path =
        fmt::format("{}/events.out.tfevents.{}.{}", folder, run.started_ms / 1000, run.id);
    ok_or_throw(replace_file(path, {tensorboard_events(of_task)}, false));
    paths.push_back(std::move(path));
  }
  return paths;
}

}  // namespace flow
