// Memory that two processes of a machine map.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "flow/result.hpp"

namespace flow {

/// Tensors of a message with fewer bytes are sent in its frame: they fit in the buffer of a socket,
/// and take no longer that way.
constexpr uint64_t kSharedBytesMin = 192u << 10;

/// Where the tensors of a message are written, beside its frame.
struct TensorMemory {
  uint64_t id = 0;  // from 1
  char* data = nullptr;
  size_t size = 0;
};

/// A memfd of a fixed size, and its mapping for reading and writing.
class SharedMemory {
 public:
  /// All pages are allocated at once, and charged to the cgroup of the caller, so that no access
  /// fails later. `size` is above 0. Error if the system has no memfd, or too little memory.
  static Result<std::unique_ptr<SharedMemory>> create(size_t size);
  /// Maps memory of another process. Owns `descriptor`. Error if it is not memory of this size, or
  /// if its size could change: an access beyond its end would end this process.
  static Result<std::unique_ptr<SharedMemory>> open(int descriptor, size_t size);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }
  int descriptor() const { return descriptor_; }
  /// The same memory, mapped once more.
  Result<std::unique_ptr<SharedMemory>> open_again() const;
  /// Puts a copy of the content in place of the mapping: what refers to it keeps its content. No
  /// thread writes to it meanwhile.
  Status make_private();

 private:
  SharedMemory(int descriptor, char* data, size_t size)
      : descriptor_(descriptor), data_(data), size_(size) {}

  int descriptor_;
  char* data_;
  size_t size_;
};

}  // namespace flow
