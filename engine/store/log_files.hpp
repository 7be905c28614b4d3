// How RocksDB writes and reads its write-ahead logs here. Zeros are written ahead of what a log
// holds: a sync then writes data where blocks and size are there already, and changes nothing of
// the file itself, which takes a third of a sync's time on ext4. Who reads a log sees its whole
// records only, so that to RocksDB it ends where it was written to.
#pragma once
#include <rocksdb/file_system.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "engine/store/log_records.hpp"

namespace flow {

/// What is known to be durable of the newest log. Thread-safe.
class SyncProgress {
 public:
  void advance(uint64_t log, uint64_t size);
  SyncMark mark() const;

 private:
  mutable std::mutex mutex_;
  SyncMark newest_;
};

/// The machine's files, with logs (`*.log`) written and read as above.
std::shared_ptr<rocksdb::FileSystem> make_log_files(std::shared_ptr<SyncProgress> progress);

/// Bytes of the log at `path` without the zeros at its end.
uint64_t written_size(const std::string& path);

}  // namespace flow
