#include "engine/store/log_records.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "engine/store/checksum.hpp"

namespace flow {

namespace {

constexpr size_t kLengthAt = 4, kTypeAt = 6;                     // in the header
constexpr uint8_t kFullType = 1, kFirstType = 2, kLastType = 4;  // logs are not recycled
constexpr uint32_t kMaskDelta = 0xa282ead8u;
// A batch is a sequence number, a count and its entries; log data is an entry that no table gets.
constexpr size_t kBatchHeader = 12;
constexpr char kLogDataTag = 3;

constexpr std::string_view kFill = "unwritten so far";  // no type of a record is a letter
static_assert(kSector % kFill.size() == 0);

template <typename T>
T number_at(std::string_view bytes, size_t at) {
  T number = 0;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

}  // namespace

uint64_t log_number(const std::string& path) {
  return std::strtoull(std::filesystem::path(path).stem().c_str(), nullptr, 10);
}

std::string encode_marks(const SyncMarks& marks) {
  std::string bytes;
  for (uint64_t number : {marks.newest.log, marks.newest.size, marks.before.log, marks.before.size})
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  return bytes;
}

size_t left_in_block(size_t at) { return kLogBlock - at % kLogBlock; }

size_t record_size(std::string_view log, size_t at) {
  return kRecordHeader + number_at<uint16_t>(log, at + kLengthAt);
}

uint32_t stored_checksum(std::string_view log, size_t at) {
  uint32_t rotated = number_at<uint32_t>(log, at) - kMaskDelta;
  return rotated >> 17 | rotated << 15;
}

bool is_whole_record(std::string_view log, size_t at) {
  size_t room = std::min(left_in_block(at), log.size() - at);
  if (room < kRecordHeader) return false;
  auto type = static_cast<uint8_t>(log[at + kTypeAt]);
  size_t size = record_size(log, at);
  if (type < kFullType || type > kLastType || size > room) return false;
  return crc32c(log.substr(at + kTypeAt, size - kTypeAt)) == stored_checksum(log, at);
}

SyncMarks marks_of(std::string_view log, size_t at) {
  auto type = static_cast<uint8_t>(log[at + kTypeAt]);
  if (type != kFullType && type != kFirstType) return {};
  std::string_view payload = log.substr(at + kRecordHeader, record_size(log, at) - kRecordHeader);
  constexpr size_t kNumber = sizeof(uint64_t), kMarksBytes = 4 * kNumber;
  constexpr size_t kMarksAt = kBatchHeader + 2;  // behind their tag and their length
  if (payload.size() < kMarksAt + kMarksBytes) return {};
  if (payload[kBatchHeader] != kLogDataTag || payload[kBatchHeader + 1] != char{kMarksBytes})
    return {};
  auto number = [&](size_t i) { return number_at<uint64_t>(payload, kMarksAt + i * kNumber); };
  return {{number(0), number(1)}, {number(2), number(3)}};
}

BatchSpan batch_span(std::string_view log, size_t at) {
  auto type = static_cast<uint8_t>(log[at + kTypeAt]);
  bool begins = type == kFullType || type == kFirstType;
  if (!begins || record_size(log, at) < kRecordHeader + kBatchHeader) return {};
  auto first = number_at<uint64_t>(log, at + kRecordHeader);
  return {first, first + number_at<uint32_t>(log, at + kRecordHeader + sizeof first)};
}

size_t end_of_whole(std::string_view log, size_t at, const std::function<void(size_t)>& visit) {
  while (at < log.size()) {
    if (left_in_block(at) < kRecordHeader) {
      at = std::min(log.size(), at + left_in_block(at));
    } else if (is_whole_record(log, at)) {
      if (visit) visit(at);
      at += record_size(log, at);
    } else {
      break;
    }
  }
  return at;
}

void fill_unwritten(std::string& bytes, uint64_t at) {
  for (size_t i = 0; i < bytes.size(); i++) bytes[i] = kFill[(at + i) % kFill.size()];
}

size_t written_bytes(std::string_view log, size_t at, size_t end) {
  size_t count = 0;
  for (size_t i = at; i < end; i++) count += log[i] != kFill[i % kFill.size()] ? 1 : 0;
  return count;
}

int changed_bits(std::string_view log, size_t at) {
  return std::popcount(static_cast<uint8_t>(log[at] ^ kFill[at % kFill.size()]));
}

bool is_unwritten(std::string_view log, size_t at) {
  bool is_filled = at + kFill.size() <= log.size() &&
                   written_bytes(log, log.size() - kFill.size(), log.size()) == 0;
  while (at < log.size()) {
    size_t next = std::min(log.size(), at - at % kSector + kSector);
    // Of a filled log a sector that holds records was filled before.
    bool may_be_zero = at % kSector == 0 || !is_filled;
    bool is_zero = log.substr(at, next - at).find_first_not_of('\0') == std::string_view::npos;
    if (written_bytes(log, at, next) != 0 && !(may_be_zero && is_zero)) return false;
    at = next;
  }
  return true;
}

}  // namespace flow
