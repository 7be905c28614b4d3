// The file system through which RocksDB writes and reads its write-ahead logs. A log is
// preallocated durably with a fill pattern: a sync then writes only data and no file metadata,
// which is a third of a sync's time on ext4, and after a power cut unwritten parts differ from
// written ones. A log is durable before the next one begins. Readers see only complete records, so
// that for RocksDB a log ends after the last of them.
#pragma once
#include <rocksdb/file_system.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "engine/store/log_records.hpp"

namespace flow {

/// The durable sizes of the newest logs. Thread-safe.
class SyncProgress {
 public:
  void advance(uint64_t log, uint64_t size);
  SyncMarks marks() const;

 private:
  mutable std::mutex mutex_;
  SyncMarks marks_;
};

/// The default file system, with logs (`*.log`) written and read as described above.
std::shared_ptr<rocksdb::FileSystem> make_log_files(std::shared_ptr<SyncProgress> progress);

/// Size of the log at `path` without its unwritten tail.
uint64_t written_size(const std::string& path);

}  // namespace flow
