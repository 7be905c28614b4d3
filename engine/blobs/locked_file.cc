// The lock is flock(2). It belongs to the open file, not to the process.
#include "engine/blobs/locked_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "engine/blobs/folder.hpp"

namespace flow {

bool lock_file(int descriptor) {
  while (::flock(descriptor, LOCK_EX) != 0 && errno == EINTR) {
  }
  struct stat info {};
  return ::fstat(descriptor, &info) != 0 || info.st_nlink > 0;
}

bool remove_abandoned(const std::string& path) {
  // Opened for writing, because NFS grants an exclusive lock only on a descriptor that is open for
  // writing.
  int descriptor = ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  bool is_folder = descriptor < 0 && errno == EISDIR;
  if (is_folder) descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0) return false;
  bool is_free = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0;
  bool is_held = !is_free && errno == EWOULDBLOCK;
  if (is_free && is_folder) (void)remove_tree(path);
  if (is_free && !is_folder) ::unlink(path.c_str());
  ::close(descriptor);
  return is_held;
}

}  // namespace flow
