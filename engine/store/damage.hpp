// Where a write-ahead log is damaged: RocksDB says that it is, not where.
#pragma once
#include <string>

namespace flow {

/// "FILE at offset N" of the first record below `database` whose checksum is wrong, or "".
std::string find_log_damage(const std::string& database);

}  // namespace flow
