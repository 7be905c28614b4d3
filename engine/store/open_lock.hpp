// A writer that opens begins a new manifest and removes the tables that it merged. RocksDB's reader
// aborts the process where that happens while it opens: so they take turns.
#pragma once
#include <string>

namespace flow {

/// Held while a state's database is opened: by one writer alone, or by readers. It is the kernel's
/// lock of the folders themselves, so it needs no file and no right to write. A process that hangs
/// while it holds the lock, or a file system without locks, stops nobody for long.
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
