// Finds damage in the database's write-ahead logs. RocksDB takes some damage for the end of a log
// and silently drops what follows: one flipped bit in a record's length or type is enough.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flow {

struct LogCheck {
  /// "FILE at offset N" of a damaged record in a write-ahead log or the manifest; "" if there is
  /// none. An incomplete tail is not damage.
  std::string damage;
  std::vector<std::pair<std::string, uint64_t>> ends;  // of logs that hold more than whole records
};
/// Call this before opening the database, which removes the logs that it has read.
LogCheck check_logs(const std::string& database);

/// Truncates each write-ahead log after its last complete record. Only for the writer, and only if
/// there is no damage.
void truncate_unwritten(const LogCheck& check);

/// Offset of the first damaged record of the log with this number, or npos.
size_t first_wrong_record(std::string_view log, uint64_t number);

}  // namespace flow
