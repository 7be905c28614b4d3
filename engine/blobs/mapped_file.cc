// A private mapping, and its end.
#include "engine/blobs/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/base/file_descriptor.hpp"

namespace flow {
namespace {

class Mapping {
 public:
  Mapping(void* data, size_t size) : data_(data), size_(size) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(data_, size_); }

 private:
  void* data_;
  size_t size_;
};

Error failed(const char* what, const std::string& path) {
  int code = errno;
  return environment_error(fmt::format("cannot {} `{}`: {}", what, path, std::strerror(code)));
}

}  // namespace

Result<Bytes> map_file(const std::string& path) {
  FileDescriptor file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a FIFO has no end
  if (file.number < 0) return failed("open", path);
  struct stat info {};
  if (::fstat(file.number, &info) != 0) return failed("read", path);
  if (!S_ISREG(info.st_mode))
    return environment_error(fmt::format("cannot map `{}`: it is not a regular file", path));
  auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return Bytes({}, std::make_shared<const char>('\0'), true);
  void* data =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.number, 0);
  if (data == MAP_FAILED) return failed("map", path);
  auto mapping = std::make_shared<const Mapping>(data, size);
  return Bytes({static_cast<const char*>(data), size}, std::move(mapping), true);
}

}  // namespace flow
