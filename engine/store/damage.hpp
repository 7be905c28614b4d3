// Where the database's logs are damaged. RocksDB takes some damage for the end of a log and drops
// what follows in silence: one flipped bit of a record's length or type is enough.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flow {

struct LogCheck {
  /// "FILE at offset N" of a record that is not as it was written, in a write-ahead log or the
  /// manifest; "" where all are. A tail that was never written whole is no damage.
  std::string damage;
  std::vector<std::pair<std::string, uint64_t>> ends;  // of logs that hold more than whole records
};
/// To be asked before the database is opened, which removes the logs it has read.
LogCheck check_logs(const std::string& database);

/// Ends each write-ahead log where its whole records end: later logs then follow one that has an
/// end. For the writer, where there is no damage.
void truncate_unwritten(const LogCheck& check);

/// The offset of the first record of `log`, whose name has `number`, that is not as it was written,
/// or npos.
size_t first_wrong_record(std::string_view log, uint64_t number);

}  // namespace flow
