#include "engine/crypto/file_digest.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace flow {
namespace {

constexpr size_t kReadSize = 256 * 1024;

Error unreadable(const char* what, const std::string& path) {
  int code = errno;
  return environment_error(std::string("cannot ") + what + " `" + path +
                           "`: " + std::strerror(code));
}

}  // namespace

Result<FileDigest> sha256_file(const std::string& path) {
  int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return unreadable("open", path);
  Sha256 hash;
  FileDigest result;
  std::string buffer(kReadSize, '\0');
  ssize_t got = 0;
  do {
    got = ::read(file, buffer.data(), buffer.size());
    if (got <= 0) continue;
    hash.update(std::string_view(buffer).substr(0, static_cast<size_t>(got)));
    result.size += static_cast<uint64_t>(got);
  } while (got > 0 || (got < 0 && errno == EINTR));
  int code = errno;
  ::close(file);
  errno = code;
  if (got < 0) return unreadable("read", path);
  result.digest = hash.finish();
  return result;
}

bool holds(const std::string& path, const Digest& digest, uint64_t size) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || static_cast<uint64_t>(info.st_size) != size) return false;
  auto found = sha256_file(path);
  return found.ok() && found->digest == digest;
}

bool remove_unless(const std::string& path, const Digest& digest) {
  auto now = sha256_file(path);
  return now.ok() && now->digest != digest && ::unlink(path.c_str()) == 0;
}

}  // namespace flow
