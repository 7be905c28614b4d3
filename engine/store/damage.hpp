// Where the database's logs are damaged. RocksDB takes some damage for the end of a log and drops
// what follows in silence: one flipped bit of a record's length or type is enough.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace flow {

/// "FILE at offset N" of the first record below `database` that is not as it was written, in a
/// write-ahead log or the manifest; "" where all are. A tail that was never written whole is no
/// damage. To be asked before the database is opened, which removes the logs it has read.
std::string find_log_damage(const std::string& database);

/// Ends each write-ahead log where its whole records end: later logs then follow one that has an
/// end. For the writer, where there is no damage.
void cut_unwritten(const std::string& database);

/// What other logs tell of one.
struct OtherLogs {
  uint64_t durable = 0;      // bytes of it
  bool are_written = false;  // later ones hold batches: the log was durable, whole, before them
};
/// The offset of the first record of `log`, whose name has `number`, that is not as it was written,
/// or npos.
size_t first_wrong_record(std::string_view log, uint64_t number, const OtherLogs& others = {});

}  // namespace flow
