// The format of a RocksDB log (see its page "Write Ahead Log File Format"): blocks of 32 KiB with
// records of a masked CRC-32C, a length and a type; the checksum covers type and payload, not the
// length. Flow adds sync marks at the start of each batch, and a fill pattern in unwritten parts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace flow {

constexpr size_t kLogBlock = 32 * 1024;
constexpr size_t kRecordHeader = 7;
constexpr size_t kSector = 512;  // a disk writes a sector completely or not at all

/// How much of a log was durable when a batch was written: an invalid record before that is damage,
/// not a write that a power cut interrupted.
struct SyncMark {
  uint64_t log = 0;   // the number in the log's name
  uint64_t size = 0;  // bytes
};
struct SyncMarks {
  SyncMark newest, before;  // of the newest log, and of the one before it
};
std::string encode_marks(const SyncMarks& marks);

uint64_t log_number(const std::string& path);  // in the log's name

/// These functions take a log from its start, or from the start of a block.
size_t left_in_block(size_t at);
// Including its header, which contains the length.
size_t record_size(std::string_view log, size_t at);
uint32_t stored_checksum(std::string_view log, size_t at);
bool is_whole_record(std::string_view log, size_t at);
/// The marks of the batch that begins in the complete record at `at`; {} if there are none.
SyncMarks marks_of(std::string_view log, size_t at);
/// Sequence numbers of a batch: from `first` on, before `end`.
struct BatchSpan {
  uint64_t first = 0, end = 0;
};
/// The span of the batch that begins in the complete record at `at` of a write-ahead log; {} if
/// none begins there.
BatchSpan batch_span(std::string_view log, size_t at);
/// The end of the consecutive complete records from `at` on; `visit` is called with the offset of
/// each.
size_t end_of_whole(std::string_view log, size_t at,
                    const std::function<void(size_t)>& visit = nullptr);

/// Fills `bytes` with the fill pattern for offset `at`, a multiple of the sector size.
void fill_unwritten(std::string& bytes, uint64_t at);
/// Number of bytes in log[at, end) that differ from the fill pattern.
size_t written_bytes(std::string_view log, size_t at, size_t end);
// Number of differing bits from the fill pattern there.
int changed_bits(std::string_view log, size_t at);
/// Whether nothing was written from `at` on: each sector has the fill pattern, or zeros if the fill
/// did not reach the disk.
bool is_unwritten(std::string_view log, size_t at);

}  // namespace flow
