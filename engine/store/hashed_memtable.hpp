// A memtable for rows that are put and looked up one by one, at random, and read in order only when
// they are flushed.
#pragma once
#include <rocksdb/memtablerep.h>

#include <memory>

namespace flow {

/// RocksDB's hashed lists of `buckets` for look-ups, and its vector for reading in order. Alone the
/// hashed lists are put into a skip list for each reading: several cache misses a level for each
/// row, which a sort does not have. One writer at a time.
std::shared_ptr<rocksdb::MemTableRepFactory> hashed_memtable(size_t buckets);

}  // namespace flow
