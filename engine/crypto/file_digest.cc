#include "engine/crypto/file_digest.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/base/file_descriptor.hpp"

namespace flow {
namespace {

constexpr size_t kReadSize = 256 * 1024;

Error unreadable(const char* what, const std::string& path) {
  int code = errno;
  return environment_error(std::string("cannot ") + what + " `" + path +
                           "`: " + std::strerror(code));
}

}  // namespace

Result<FileDigest> sha256_descriptor(int descriptor, const std::string& path,
                                     const std::function<Status(std::string_view)>& on_chunk) {
  Sha256 hash;
  FileDigest result;
  std::string buffer(kReadSize, '\0');
  while (true) {
    ssize_t got = ::read(descriptor, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return unreadable("read", path);
    if (got == 0) break;
    std::string_view bytes(buffer.data(), static_cast<size_t>(got));
    hash.update(bytes);
    result.size += bytes.size();
    FLOW_TRY(on_chunk(bytes));
  }
  result.digest = hash.finish();
  return result;
}

Result<FileDigest> sha256_file(const std::string& path) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.number < 0) return unreadable("open", path);
  return sha256_descriptor(file.number, path, [](std::string_view) { return Status(); });
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
