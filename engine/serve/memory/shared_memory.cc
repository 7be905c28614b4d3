#include "engine/serve/memory/shared_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace flow {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

Error failed(const char* what, int error) {
  return environment_error(fmt::format("cannot {} shared memory: {}", what, std::strerror(error)));
}

}  // namespace

Result<std::unique_ptr<SharedMemory>> SharedMemory::create(size_t size) {
  FLOW_CHECK(size > 0);
  int descriptor = ::memfd_create("flow-tensors", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return failed("create", errno);
  int error = ::posix_fallocate(descriptor, 0, static_cast<off_t>(size));
  if (error == 0 && ::fcntl(descriptor, F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0) error = errno;
  if (error == 0) return open(descriptor, size);
  ::close(descriptor);
  return failed("create", error);
}

Result<std::unique_ptr<SharedMemory>> SharedMemory::open(int descriptor, size_t size) {
  auto reject = [&](const char* why) {
    ::close(descriptor);
    return environment_error(fmt::format("this is not shared memory of {} bytes: {}", size, why));
  };
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return reject("not a file");
  if (size == 0 || static_cast<uint64_t>(status.st_size) != size)
    return reject("it has another size");
  int seals = ::fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return reject("its size can change");
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) {
    int error = errno;
    ::close(descriptor);
    return failed("map", error);
  }
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(descriptor, static_cast<char*>(data), size));
}

SharedMemory::~SharedMemory() {
  ::munmap(data_, size_);
  ::close(descriptor_);
}

Result<std::unique_ptr<SharedMemory>> SharedMemory::open_again() const {
  int descriptor = ::fcntl(descriptor_, F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0) return failed("map", errno);
  return open(descriptor, size_);
}

Status SharedMemory::make_private() {
  void* copy = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return failed("copy", errno);
  std::memcpy(copy, data_, size_);
  if (::mremap(copy, size_, size_, MREMAP_MAYMOVE | MREMAP_FIXED, data_) == MAP_FAILED) {
    int error = errno;
    ::munmap(copy, size_);
    return failed("copy", error);
  }
  return {};
}

}  // namespace flow
