// Reads logs as RocksDB's "Write Ahead Log File Format" page gives them: blocks of 32 KiB, records
// of a masked CRC-32C, a length and a type, that cover type and payload.
#include "engine/store/damage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include "engine/base/files.hpp"
#include "engine/store/checksum.hpp"

namespace flow {

namespace fs = std::filesystem;

namespace {

constexpr size_t kBlock = 32 * 1024;
constexpr size_t kHeader = 7;
constexpr size_t kRecyclableHeader = 11;  // with the log's number
constexpr uint8_t kFirstRecyclable = 5;
constexpr uint32_t kMaskDelta = 0xa282ead8u;

uint32_t unmasked(uint32_t masked) {
  uint32_t rotated = masked - kMaskDelta;
  return rotated >> 17 | rotated << 15;
}

/// Offset of the first wrong record, or npos. A tail that was never written whole is no damage.
size_t first_wrong(std::string_view log) {
  size_t at = 0;
  while (at < log.size()) {
    size_t left_in_block = kBlock - at % kBlock;
    if (left_in_block < kHeader) {
      at += left_in_block;
      continue;
    }
    if (at + kHeader > log.size()) return std::string_view::npos;
    uint32_t stored = 0;
    std::memcpy(&stored, log.data() + at, 4);
    size_t length = static_cast<uint8_t>(log[at + 4]) |
                    static_cast<size_t>(static_cast<uint8_t>(log[at + 5])) << 8;
    uint8_t type = static_cast<uint8_t>(log[at + 6]);
    size_t header = type >= kFirstRecyclable && type <= 8 ? kRecyclableHeader : kHeader;
    if (type == 0 && length == 0) {  // preallocated
      at += left_in_block;
      continue;
    }
    if (header + length > left_in_block) return at;
    if (at + header + length > log.size()) return std::string_view::npos;
    std::string_view covered = log.substr(at + 6, header - 6 + length);
    if (crc32c(covered) != unmasked(stored)) return at;
    at += header + length;
  }
  return std::string_view::npos;
}

}  // namespace

std::string find_log_damage(const std::string& database) {
  std::vector<fs::path> logs;
  std::error_code failed;
  for (fs::directory_iterator walk(database, failed), end; !failed && walk != end;
       walk.increment(failed)) {
    if (walk->path().extension() == ".log") logs.push_back(walk->path());
  }
  std::sort(logs.begin(), logs.end());
  for (const fs::path& path : logs) {
    auto log = read_file(path.string());
    if (!log.ok()) continue;
    size_t at = first_wrong(*log);
    if (at != std::string_view::npos) return fmt::format("{} at offset {}", path.string(), at);
  }
  return "";
}

}  // namespace flow
