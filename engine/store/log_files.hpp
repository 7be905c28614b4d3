// How RocksDB writes and reads its write-ahead logs here. A log is filled ahead of what it holds,
// durably: a sync then writes data where blocks and size are there already, and changes nothing of
// the file itself, which takes a third of a sync's time on ext4; and what a loss of power kept from
// the disk is told from what was written. A log is durable before a later one is begun. Who reads a
// log sees its whole records only, so that to RocksDB it ends where it was written to.
#pragma once
#include <rocksdb/file_system.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "engine/store/log_records.hpp"

namespace flow {

/// What is known to be durable of the newest logs. Thread-safe.
class SyncProgress {
 public:
  void advance(uint64_t log, uint64_t size);
  SyncMarks marks() const;

 private:
  mutable std::mutex mutex_;
  SyncMarks marks_;
};

/// The machine's files, with logs (`*.log`) written and read as above.
std::shared_ptr<rocksdb::FileSystem> make_log_files(std::shared_ptr<SyncProgress> progress);

/// Bytes of the log at `path` without what is unwritten at its end.
uint64_t written_size(const std::string& path);

}  // namespace flow
