// An open file descriptor that closes itself.
#pragma once
#include <unistd.h>

namespace flow {

/// Owns `number`, which is negative if it could not be opened.
struct FileDescriptor {
  const int number;
  explicit FileDescriptor(int number) : number(number) {}
  ~FileDescriptor() {
    if (number >= 0) ::close(number);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
};

}  // namespace flow
