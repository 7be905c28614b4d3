#include "engine/store/damage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "engine/base/files.hpp"
#include "engine/store/checksum.hpp"
#include "engine/store/log_records.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr size_t kSector = 512;  // a disk writes it whole or not at all
constexpr size_t kChecksum = 4;

size_t nonzero_bytes(std::string_view bytes) {
  return bytes.size() - static_cast<size_t>(std::count(bytes.begin(), bytes.end(), '\0'));
}

bool is_zero(std::string_view bytes) {
  return bytes.find_first_not_of('\0') == std::string_view::npos;
}

/// Whether of what the record at `at` covers there is nothing in some sector, as after a write that
/// came to the disk in part.
bool lacks_sector(std::string_view log, size_t at, size_t size) {
  size_t end = at + size;
  while (at < end) {
    size_t next = std::min(end, at - at % kSector + kSector);
    if (is_zero(log.substr(at, next - at))) return true;
    at = next;
  }
  return false;
}

/// Whether the record at `at` would be whole if it had another length.
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

struct Later {
  bool has_whole = false;
  size_t durable = 0;  // bytes of the log, as what was written whole says
};

/// What was written whole behind `at`.
Later whole_after(std::string_view log, size_t at, uint64_t number) {
  Later later;
  for (size_t next = at + 1; next < log.size();) {
    if (!is_whole_record(log, next)) {
      next++;
      continue;
    }
    later.has_whole = true;
    SyncMark mark = mark_of(log, next);
    if (mark.log == number) later.durable = std::max(later.durable, mark.size);
    next += record_size(log, next);
  }
  return later;
}

/// Whether a crash in the middle of a write can have left this, of what no sync had reached: the
/// rest was not written, or is cut, or came to the disk in some of its sectors.
bool is_torn_tail(std::string_view log, size_t at, uint64_t number) {
  std::string_view rest = log.substr(at);
  if (is_zero(rest)) return true;
  Later later = whole_after(log, at, number);
  if (later.durable > at) return false;
  if (rest.size() < kRecordHeader) return true;
  if (is_zero(rest.substr(0, kRecordHeader))) return nonzero_bytes(rest) > kChecksum;
  size_t size = record_size(log, at);
  if (size > left_in_block(at) || has_wrong_length(log, at)) return false;
  if (size > rest.size()) return !later.has_whole;
  return lacks_sector(log, at, size);
}

std::vector<fs::path> logs_of(const std::string& database) {
  std::vector<fs::path> logs;
  std::error_code failed;
  for (fs::directory_iterator walk(database, failed), end; !failed && walk != end;
       walk.increment(failed)) {
    if (walk->path().extension() == ".log") logs.push_back(walk->path());
  }
  std::sort(logs.begin(), logs.end());
  std::string manifest;
  std::ifstream current(fs::path(database) / "CURRENT");
  if (std::getline(current, manifest)) logs.push_back(fs::path(database) / manifest);
  return logs;
}

}  // namespace

size_t first_wrong_record(std::string_view log, uint64_t number) {
  size_t at = end_of_whole(log, 0);
  return at >= log.size() || is_torn_tail(log, at, number) ? std::string_view::npos : at;
}

std::string find_log_damage(const std::string& database) {
  for (const fs::path& path : logs_of(database)) {
    auto log = read_file(path.string());
    if (!log.ok()) continue;  // a live writer removed it
    uint64_t number = std::strtoull(path.stem().c_str(), nullptr, 10);
    size_t at = first_wrong_record(*log, number);
    if (at != std::string_view::npos) return fmt::format("{} at offset {}", path.string(), at);
  }
  return "";
}

}  // namespace flow
