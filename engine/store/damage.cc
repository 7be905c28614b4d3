#include "engine/store/damage.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "engine/base/files.hpp"
#include "engine/store/checksum.hpp"
#include "engine/store/log_records.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr size_t kFewBytes = 4;

/// Whether some sector of the record at `at` was never written, as after an interrupted write.
bool lacks_sector(std::string_view log, size_t at, size_t size) {
  size_t end = at + size;
  while (at < end) {
    size_t next = std::min(end, at - at % kSector + kSector);
    if (written_bytes(log, at, next) == 0) return true;
    at = next;
  }
  return false;
}

/// Whether the record at `at` would be complete with another length.
bool has_wrong_length(std::string_view log, size_t at) {
  size_t end = std::min(log.size(), at + left_in_block(at));
  size_t type_at = at + kRecordHeader - 1;
  if (type_at >= end) return false;
  uint32_t checksum = crc32c(log.substr(type_at, 1));
  uint32_t stored = stored_checksum(log, at);
  for (size_t next = type_at + 1; next < end; next++) {
    if (checksum == stored) return true;
    checksum = crc32c(log.substr(next, 1), checksum);
  }
  return checksum == stored;
}

/// Whether the bytes in the fill pattern behind `at` can be parts of an interrupted record: its
/// first ones up to the end of a sector, or its last ones from the start of a sector.
bool are_torn_ends(std::string_view log, size_t at) {
  size_t first_end = std::min(at - at % kSector + kSector, at + kFewBytes);
  size_t count = 0, first = 0;
  for (size_t i = at; i < log.size(); i++) {
    if (written_bytes(log, i, i + 1) == 0) continue;
    if (i >= first_end && i % kSector >= kFewBytes) return false;
    if (count++ == 0) first = i;
  }
  return count > 1 || changed_bits(log, first) > 1;
}

/// What other logs prove about a log.
struct LogFacts {
  uint64_t durable = 0;  // durable bytes of it
  // Later logs hold batches, so this log was completely durable before them.
  bool are_written = false;
};

struct TailFacts {
  bool has_whole = false;
  uint64_t durable = 0;  // durable bytes of the log, according to complete records
};

uint64_t durable_size(const SyncMarks& marks, uint64_t number) {
  if (marks.newest.log == number) return marks.newest.size;
  return marks.before.log == number ? marks.before.size : 0;
}

/// Facts from the complete records behind `at`, as far as they are needed to know what was durable.
TailFacts whole_after(std::string_view log, size_t at, uint64_t number) {
  TailFacts tail;
  for (size_t next = at + 1; next < log.size() && tail.durable <= at;) {
    if (!is_whole_record(log, next)) {
      next++;
      continue;
    }
    tail.has_whole = true;
    tail.durable = std::max(tail.durable, durable_size(marks_of(log, next), number));
    next += record_size(log, next);
  }
  return tail;
}

/// Whether an interrupted, unsynced write can have left this tail: the rest is missing, or only
/// some of its sectors reached the disk.
bool is_torn_tail(std::string_view log, size_t at, uint64_t number) {
  size_t left = log.size() - at;
  TailFacts tail = whole_after(log, at, number);
  if (tail.durable > at) return false;
  if (left < kRecordHeader) return true;
  if (lacks_sector(log, at, kRecordHeader))
    return written_bytes(log, at, log.size()) > kFewBytes || are_torn_ends(log, at);
  size_t size = record_size(log, at);
  if (size > left_in_block(at) || has_wrong_length(log, at)) return false;
  if (size > left) return !tail.has_whole;
  return lacks_sector(log, at, size);
}

/// Oldest first.
std::vector<fs::path> logs_of(const std::string& database) {
  std::vector<fs::path> logs;
  std::error_code failed;
  for (fs::directory_iterator walk(database, failed), end; !failed && walk != end;
       walk.increment(failed)) {
    if (walk->path().extension() == ".log") logs.push_back(walk->path());
  }
  std::sort(logs.begin(), logs.end());
  return logs;
}

/// What the logs read so far prove about older ones.
class LogHistory {
 public:
  LogFacts of(uint64_t number) const {
    return {std::max(durable_size(last_, number), durable_size(first_, number)), are_written_};
  }
  struct ReadResult {
    size_t end = 0;  // end of the complete records
    size_t repeated_at = std::string_view::npos;
  };
  /// Reads the next older log. A batch whose sequence numbers are not above the previous ones, or
  /// not below those of the next log, is a stray copy: RocksDB aborts the process when it replays
  /// one.
  ReadResult read(std::string_view log) {
    bool is_first = true;
    ReadResult read;
    uint64_t next = 0, first_of_log = first_sequence_;
    read.end = end_of_whole(log, 0, [&](size_t at) {
      BatchSpan batch = batch_span(log, at);
      bool is_repeated = batch.end != 0 && (batch.first < next || batch.end > first_sequence_);
      if (is_repeated && read.repeated_at == std::string_view::npos) read.repeated_at = at;
      if (batch.end != 0) first_of_log = std::min(first_of_log, batch.first);
      next = std::max(next, batch.end);
      SyncMarks marks = marks_of(log, at);
      if (marks.newest.log == 0) return;
      if (std::exchange(is_first, false)) first_ = marks;
      last_ = marks;
      are_written_ = true;
    });
    first_sequence_ = first_of_log;
    return read;
  }

 private:
  uint64_t first_sequence_ = UINT64_MAX;  // of all batches so far
  SyncMarks first_, last_;  // of the oldest log with batches: those of its first and last batch
  bool are_written_ = false;
};

/// `end`: end of the complete records.
size_t wrong_at(std::string_view log, size_t end, uint64_t number, const LogFacts& others) {
  if (end < others.durable) return end;
  if (end >= log.size() || is_unwritten(log, end)) return std::string_view::npos;
  bool is_torn = !others.are_written && is_torn_tail(log, end, number);
  return is_torn ? std::string_view::npos : end;
}

std::string offset_text(const fs::path& path, size_t at) {
  return at == std::string_view::npos ? "" : fmt::format("{} at offset {}", path.string(), at);
}

std::string manifest_damage(const std::string& database) {
  std::string name;
  std::ifstream current(fs::path(database) / "CURRENT");
  if (!std::getline(current, name)) return "";
  fs::path path = fs::path(database) / name;
  auto manifest = read_file(path.string());
  return manifest.ok() ? offset_text(path, first_wrong_record(*manifest, 0)) : "";
}

}  // namespace

size_t first_wrong_record(std::string_view log, uint64_t number) {
  return wrong_at(log, end_of_whole(log, 0), number, {});
}

LogCheck check_logs(const std::string& database) {
  LogCheck check;
  check.damage = manifest_damage(database);
  std::vector<fs::path> logs = logs_of(database);
  LogHistory history;
  for (auto path = logs.rbegin(); path != logs.rend(); ++path) {
    auto log = read_file(path->string());
    if (!log.ok()) continue;  // a live writer removed it
    uint64_t number = log_number(path->string());
    LogFacts others = history.of(number);
    auto [end, repeated_at] = history.read(*log);
    std::string where =
        offset_text(*path, std::min(repeated_at, wrong_at(*log, end, number, others)));
    if (!where.empty()) check.damage = where;
    if (end < log->size()) check.ends.emplace_back(path->string(), end);
  }
  return check;
}

void truncate_unwritten(const LogCheck& check) {
  for (const auto& [path, end] : check.ends) {
    int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor < 0) continue;  // a reader sees only complete records anyway
    if (::ftruncate(descriptor, static_cast<off_t>(end)) == 0) (void)!::fsync(descriptor);
    ::close(descriptor);
  }
}

}  // namespace flow
