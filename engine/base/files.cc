// Reading and writing files. Every error names the path and the system's reason.
#include "engine/base/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "engine/base/file_descriptor.hpp"
#include "engine/base/ids.hpp"

namespace flow {
namespace {

constexpr size_t kReadSize = 256 * 1024;

Error failed(const char* what, const std::string& path) {
  int code = errno;
  return environment_error(fmt::format("cannot {} `{}`: {}", what, path, std::strerror(code)));
}

// Bytes read into `buffer`, 0 at the end, -1 with errno.
ssize_t read_some(int fd, char* buffer, size_t size) {
  ssize_t got;
  do got = ::read(fd, buffer, size);
  while (got < 0 && errno == EINTR);
  return got;
}

std::string folder_of(const std::string& path) {
  size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

/// A new name in the folder of `path`. The name of `path` itself may be as long as the file system
/// allows, so nothing is added to it.
std::string temporary_name(const std::string& path) {
  return folder_of(path) + "/.flow-tmp-" + random_name();
}

Status write_and_sync(const std::string& path, std::string_view content, uint32_t mode) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (file.number < 0) return failed("create", path);
  if (!write_all(file.number, content)) return failed("write", path);
  if (::fsync(file.number) != 0) return failed("sync", path);
  return {};
}

}  // namespace

bool write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

Result<std::string> read_file(const std::string& path, uint64_t size_max) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.number < 0) return failed("open", path);
  struct stat info;
  if (::fstat(file.number, &info) != 0) return failed("read", path);
  if (S_ISDIR(info.st_mode))
    return environment_error(fmt::format("cannot read `{}`: it is a folder", path));
  std::string content;
  if (S_ISREG(info.st_mode) && static_cast<uint64_t>(info.st_size) <= size_max)
    content.reserve(static_cast<size_t>(info.st_size) + 1);
  for (;;) {
    size_t before = content.size();
    size_t room = content.capacity() - before;
    content.resize(before + (room > 0 && room < kReadSize ? room : kReadSize));
    ssize_t got = read_some(file.number, content.data() + before, content.size() - before);
    if (got < 0) return failed("read", path);
    content.resize(before + static_cast<size_t>(got));
    if (content.size() > size_max)
      return environment_error(
          fmt::format("cannot read `{}`: it has more than {} bytes", path, size_max));
    if (got == 0) return content;
  }
}

Status write_file_atomic(const std::string& path, std::string_view content, uint32_t mode) {
  std::string temporary = temporary_name(path);
  Status written = write_and_sync(temporary, content, mode);
  if (written.ok() && ::rename(temporary.c_str(), path.c_str()) != 0)
    written = failed("rename a new file to", path);
  if (!written.ok()) {
    ::unlink(temporary.c_str());
    return written;
  }
  return sync_dir(folder_of(path));
}

Status replace_file(const std::string& path, const std::vector<std::string_view>& pieces,
                    bool sync) {
  constexpr uint32_t kMode = 0666;
  auto put = [&](int descriptor, const std::string& name) -> Status {
    if (descriptor < 0) return failed("create", path);
    for (std::string_view piece : pieces) {
      if (!write_all(descriptor, piece)) return failed("write", path);
    }
    if (sync && ::fsync(descriptor) != 0) return failed("sync", name);
    return {};
  };
  struct stat info {};
  bool exists = ::stat(path.c_str(), &info) == 0;
  if (exists && !S_ISREG(info.st_mode)) {
    sync = false;
    FileDescriptor there(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return put(there.number, path);
  }
  std::string target = path;
  if (char* resolved = exists ? ::realpath(path.c_str(), nullptr) : nullptr) {
    target = resolved;
    std::free(resolved);
  }
  if (exists && ::access(target.c_str(), W_OK) != 0) return failed("write", path);
  std::string temporary = temporary_name(target);
  FileDescriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode));
  Status written = put(file.number, temporary);
  if (written.ok() && exists) (void)!::fchmod(file.number, info.st_mode & 07777);
  if (written.ok() && ::rename(temporary.c_str(), target.c_str()) != 0)
    written = failed("rename a new file to", target);
  if (!written.ok()) {
    if (file.number >= 0) ::unlink(temporary.c_str());
    return written;
  }
  return sync ? sync_dir(folder_of(target)) : Status();
}

Status make_dirs(const std::string& path, uint32_t mode) {
  for (size_t at = 1; at <= path.size(); at++) {
    if (at < path.size() && path[at] != '/') continue;
    std::string part = path.substr(0, at);
    if (::mkdir(part.c_str(), mode) == 0) continue;
    struct stat info;
    int code = errno;
    if (::stat(part.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) continue;
    errno = code == EEXIST ? ENOTDIR : code;
    return failed("make the folder", part);
  }
  return {};
}

Status sync_file(const std::string& path) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.number < 0) return failed("open", path);
  if (::fsync(file.number) != 0) return failed("sync", path);
  return {};
}

Status sync_dir(const std::string& path) {
  FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.number < 0) return failed("open the folder", path);
  if (::fsync(folder.number) != 0) return failed("sync the folder", path);
  return {};
}

std::string quote_shell(std::string_view word) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+,./:-";
  if (!word.empty() && word.find_first_not_of(kPlain) == word.npos) return std::string(word);
  std::string quoted = "'";
  for (char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::string find_in_path(const std::string& name, const std::string* path) {
  std::string folders = path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : *path;
  size_t at = 0;
  while (at <= folders.size()) {
    size_t colon = std::min(folders.find(':', at), folders.size());
    std::string folder = folders.substr(at, colon - at);
    at = colon + 1;
    if (!folder.starts_with('/')) continue;  // relative entries depend on the shell's folder
    std::string candidate = folder + "/" + name;
    struct stat info {};
    bool is_program = ::access(candidate.c_str(), X_OK) == 0 &&
                      ::stat(candidate.c_str(), &info) == 0 && S_ISREG(info.st_mode);
    if (is_program) return candidate;
  }
  return "";
}

}  // namespace flow
