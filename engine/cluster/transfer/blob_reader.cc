#include "engine/cluster/transfer/blob_reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace flow::cluster {

namespace {

Error unreadable(const std::string& path, const char* why) {
  return environment_error(fmt::format("cannot read `{}`: {}", path, why));
}

}  // namespace

struct BlobReader::OpenFile {
  OpenFile(int descriptor, std::string path) : descriptor(descriptor), path(std::move(path)) {}
  ~OpenFile() { ::close(descriptor); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  const int descriptor;
  const std::string path;
};

Result<BlobReader> BlobReader::of_file(const std::string& path, bool is_lent) {
  // O_NONBLOCK, because opening a pipe at that path would block this thread forever.
  int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return unreadable(path, std::strerror(errno));
  BlobReader source;
  source.file_ = std::make_shared<const OpenFile>(descriptor, path);
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) return unreadable(path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return unreadable(path, "it is not a regular file");
  source.size_ = static_cast<uint64_t>(info.st_size);
  if (is_lent) source.source_path_ = path;
  return source;
}

BlobReader BlobReader::of_bytes(std::string bytes) {
  BlobReader source;
  source.size_ = bytes.size();
  source.bytes_ = std::make_shared<const std::string>(std::move(bytes));
  return source;
}

Status BlobReader::read(uint64_t offset, char* to, size_t size) const {
  if (bytes_) {
    FLOW_CHECK(offset <= size_ && size <= size_ - offset);
    if (size > 0) std::memcpy(to, bytes_->data() + offset, size);
    return {};
  }
  while (size > 0) {
    ssize_t got = ::pread(file_->descriptor, to, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return unreadable(file_->path, std::strerror(errno));
    if (got == 0) return unreadable(file_->path, "it became shorter while it was read");
    to += got;
    offset += static_cast<uint64_t>(got);
    size -= static_cast<size_t>(got);
  }
  return {};
}

}  // namespace flow::cluster
