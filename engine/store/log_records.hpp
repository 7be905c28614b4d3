// What a log of RocksDB's consists of, as its "Write Ahead Log File Format" page gives it: blocks
// of 32 KiB, records of a masked CRC-32C, a length and a type; the checksum covers type and
// payload, not the length. And what is ours: the marks that each batch begins with, and what a log
// is filled with where nothing is written yet.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace flow {

constexpr size_t kLogBlock = 32 * 1024;
constexpr size_t kRecordHeader = 7;
constexpr size_t kSector = 512;  // a disk writes it whole or not at all

/// How much of a log was durable when a batch was written: what is wrong before that is damage, and
/// no write that a loss of power cut short.
struct SyncMark {
  uint64_t log = 0;   // the number in the log's name
  uint64_t size = 0;  // bytes
};
struct SyncMarks {
  SyncMark newest, before;  // of the newest log, and of the one before it
};
std::string encode_marks(const SyncMarks& marks);

uint64_t log_number(const std::string& path);  // in the log's name

/// Of logs as `log` is from its start, or from the start of a block on.
size_t left_in_block(size_t at);
size_t record_size(std::string_view log, size_t at);  // with its header, as that tells
uint32_t stored_checksum(std::string_view log, size_t at);
bool is_whole_record(std::string_view log, size_t at);
/// The marks of the batch that begins in the whole record at `at`; {} where there are none.
SyncMarks marks_of(std::string_view log, size_t at);
/// Sequence numbers of a batch: from `first` on, before `end`.
struct BatchSpan {
  uint64_t first = 0, end = 0;
};
/// Those of the batch that begins in the whole record at `at` of a write-ahead log; {} where none
/// begins there.
BatchSpan batch_span(std::string_view log, size_t at);
/// The end of the whole records that follow each other from `at` on; `visit` is called with each
/// one's place.
size_t end_of_whole(std::string_view log, size_t at,
                    const std::function<void(size_t)>& visit = nullptr);

/// Fills `bytes` as a log is filled at `at`, a multiple of a sector, before anything is written.
void fill_unwritten(std::string& bytes, uint64_t at);
/// Bytes of log[at, end) that are not as that fill left them.
size_t written_bytes(std::string_view log, size_t at, size_t end);
int changed_bits(std::string_view log, size_t at);  // of the byte there, against that fill
/// Whether nothing was written from `at` on: each sector is as it was filled, or zeros where the
/// fill did not come to the disk or there is none.
bool is_unwritten(std::string_view log, size_t at);

}  // namespace flow
