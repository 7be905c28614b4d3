// A writer that opens the database starts a new manifest and removes merged tables. A RocksDB
// reader that opens it at the same time aborts the process, so they exclude each other.
#pragma once
#include <string>

namespace flow {

/// Held while a state's database is opened, exclusively by a writer or shared by readers. It is a
/// kernel lock (flock) on folders, so it needs neither a file nor write permission. Waiting is
/// bounded, in case the holder hangs or the file system has no locks.
class OpenLock {
 public:
  enum class Access { writer, reader };
  OpenLock(const std::string& state_dir, Access access);
  ~OpenLock();
  OpenLock(const OpenLock&) = delete;
  OpenLock& operator=(const OpenLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace flow
