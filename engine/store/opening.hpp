// A writer that opens begins a new manifest and removes the tables that it merged. RocksDB's reader
// aborts the process where that happens while it opens: so they take turns.
#pragma once
#include <string>

namespace flow {

/// Held while a state's database is opened: by one writer alone, or by readers. It is the kernel's
/// lock of the folders themselves, so it needs no file and no right to write. A process that hangs
/// while it holds the lock, or a file system without locks, stops nobody for long.
class Opening {
 public:
  enum class Who { writer, reader };
  Opening(const std::string& state_dir, Who who);
  ~Opening();
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;

 private:
  int descriptor_;
};

}  // namespace flow
