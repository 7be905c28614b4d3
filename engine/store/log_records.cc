#include "engine/store/log_records.hpp"

#include <algorithm>
#include <cstring>

#include "engine/store/checksum.hpp"

namespace flow {

namespace {

constexpr size_t kLengthAt = 4, kTypeAt = 6;                     // in the header
constexpr uint8_t kFullType = 1, kFirstType = 2, kLastType = 4;  // logs are not recycled
constexpr uint32_t kMaskDelta = 0xa282ead8u;
// A batch is a sequence number, a count and its entries; log data is an entry that no table gets.
constexpr size_t kBatchHeader = 12;
constexpr char kLogDataTag = 3;

template <typename T>
T number_at(std::string_view bytes, size_t at) {
  T number = 0;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

}  // namespace

std::string encode_mark(const SyncMark& mark) {
  std::string bytes(sizeof mark.log + sizeof mark.size, '\0');
  std::memcpy(bytes.data(), &mark.log, sizeof mark.log);
  std::memcpy(bytes.data() + sizeof mark.log, &mark.size, sizeof mark.size);
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

SyncMark mark_of(std::string_view log, size_t at) {
  auto type = static_cast<uint8_t>(log[at + kTypeAt]);
  if (type != kFullType && type != kFirstType) return {};
  std::string_view payload = log.substr(at + kRecordHeader, record_size(log, at) - kRecordHeader);
  SyncMark mark;
  constexpr size_t kMarkBytes = sizeof mark.log + sizeof mark.size;
  constexpr size_t kMarkAt = kBatchHeader + 2;  // behind its tag and its length
  if (payload.size() < kMarkAt + kMarkBytes) return {};
  if (payload[kBatchHeader] != kLogDataTag || payload[kBatchHeader + 1] != char{kMarkBytes})
    return {};
  mark.log = number_at<uint64_t>(payload, kMarkAt);
  mark.size = number_at<uint64_t>(payload, kMarkAt + sizeof mark.log);
  return mark;
}

size_t end_of_whole(std::string_view log, size_t at) {
  while (at < log.size()) {
    if (left_in_block(at) < kRecordHeader) {
      at = std::min(log.size(), at + left_in_block(at));
    } else if (is_whole_record(log, at)) {
      at += record_size(log, at);
    } else {
      break;
    }
  }
  return at;
}

}  // namespace flow
