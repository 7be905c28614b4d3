// What a log of RocksDB's consists of, as its "Write Ahead Log File Format" page gives it: blocks
// of 32 KiB, records of a masked CRC-32C, a length and a type; the checksum covers type and
// payload, not the length. And the mark that each of our batches begins with.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace flow {

constexpr size_t kLogBlock = 32 * 1024;
constexpr size_t kRecordHeader = 7;

/// How much of a log was durable when a batch was written: what is wrong before it is damage, and
/// no write that a loss of power cut short.
struct SyncMark {
  uint64_t log = 0;   // the number in the log's name
  uint64_t size = 0;  // bytes
};
std::string encode_mark(const SyncMark& mark);

/// Of logs as `log` is from its start, or from the start of a block on.
size_t left_in_block(size_t at);
size_t record_size(std::string_view log, size_t at);  // with its header, as that tells
uint32_t stored_checksum(std::string_view log, size_t at);
bool is_whole_record(std::string_view log, size_t at);
/// The mark of the batch that begins in the whole record at `at`; {} where there is none.
SyncMark mark_of(std::string_view log, size_t at);
/// The end of the whole records that follow each other from `at` on.
size_t end_of_whole(std::string_view log, size_t at);

}  // namespace flow
