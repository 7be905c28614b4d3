// A RocksDB memtable for rows that are written and looked up individually, in random order, and
// read in key order only when they are flushed.
#pragma once
#include <rocksdb/memtablerep.h>

#include <memory>

namespace flow {

/// Combines RocksDB's hashed linked lists (with `buckets` buckets) for lookups and its vector for
/// ordered reads. By themselves the hashed lists build a skip list for each ordered read, with
/// several cache misses per level and row, which a sort avoids. One writer at a time.
std::shared_ptr<rocksdb::MemTableRepFactory> hashed_memtable(size_t buckets);

}  // namespace flow
