// Reads logs as RocksDB's "Write Ahead Log File Format" page gives them: blocks of 32 KiB, records
// of a masked CRC-32C, a length and a type; the checksum covers type and payload, not the length.
#include "engine/store/damage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "engine/base/files.hpp"
#include "engine/store/checksum.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr size_t kBlock = 32 * 1024;
constexpr size_t kHeader = 7;
constexpr size_t kTypeAt = 6;                    // in the header
constexpr uint8_t kFullType = 1, kLastType = 4;  // no log is recycled: no other type is written
constexpr uint32_t kMaskDelta = 0xa282ead8u;
constexpr size_t kSound = std::string_view::npos;

uint32_t stored_checksum(std::string_view log, size_t at) {
  uint32_t masked = 0;
  std::memcpy(&masked, log.data() + at, sizeof masked);
  uint32_t rotated = masked - kMaskDelta;
  return rotated >> 17 | rotated << 15;
}

size_t record_size(std::string_view log, size_t at) {
  uint16_t length = 0;
  std::memcpy(&length, log.data() + at + 4, sizeof length);
  return kHeader + length;
}

size_t left_in_block(size_t at) { return kBlock - at % kBlock; }

bool is_whole_record(std::string_view log, size_t at) {
  size_t room = std::min(left_in_block(at), log.size() - at);
  if (room < kHeader) return false;
  auto type = static_cast<uint8_t>(log[at + kTypeAt]);
  size_t size = record_size(log, at);
  if (type < kFullType || type > kLastType || size > room) return false;
  return crc32c(log.substr(at + kTypeAt, size - kTypeAt)) == stored_checksum(log, at);
}

/// Whether a crash in the middle of a write can have left this: the record reaches beyond the end,
/// or was not written at all, and nothing that was written whole comes after it.
bool is_torn_tail(std::string_view log, size_t at) {
  std::string_view rest = log.substr(at);
  if (rest.find_first_not_of('\0') == kSound) return true;
  if (rest.size() < kHeader) return true;
  size_t size = record_size(log, at);
  if (size <= rest.size() || size > left_in_block(at)) return false;
  // Its length may be what is wrong.
  if (crc32c(rest.substr(kTypeAt)) == stored_checksum(log, at)) return false;
  for (size_t next = at + 1; next < log.size(); next++) {
    if (is_whole_record(log, next)) return false;
  }
  return true;
}

/// Offset of the first wrong record, or kSound.
size_t first_wrong(std::string_view log) {
  size_t at = 0;
  while (at < log.size()) {
    if (left_in_block(at) < kHeader) {
      at += left_in_block(at);
    } else if (is_whole_record(log, at)) {
      at += record_size(log, at);
    } else {
      return is_torn_tail(log, at) ? kSound : at;
    }
  }
  return kSound;
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

std::string find_log_damage(const std::string& database) {
  for (const fs::path& path : logs_of(database)) {
    auto log = read_file(path.string());
    if (!log.ok()) continue;  // a live writer removed it
    size_t at = first_wrong(*log);
    if (at != kSound) return fmt::format("{} at offset {}", path.string(), at);
  }
  return "";
}

}  // namespace flow
