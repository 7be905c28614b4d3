// The memory of tensors: its device, its budget, and its reuse.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "kernels/tensor/ref_counted.hpp"

namespace flow::tensors {

/// Operands that an operation does not support, in words for the author of the script.
class TensorError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Device {
  enum Kind : uint8_t { cpu, cuda, symbol };  // symbol: no memory, see fusion.hpp
  Kind kind = cpu;
  int index = 0;  // of the GPU, from 0
  bool operator==(const Device&) const = default;
};
std::string text_of(const Device& device);  // "cpu", "cuda:0"

/// The owner of host memory: one VM. Called by the VM's thread and by threads that drop its
/// tensors.
class MemoryBudget {
 public:
  virtual ~MemoryBudget() = default;
  /// Before `bytes` are allocated. Throws a Failure if the limit is exceeded.
  virtual void charge(size_t bytes) = 0;
  virtual void release(size_t bytes) = 0;
  /// `bytes` of GPU memory were allocated.
  virtual void note_device(size_t bytes) = 0;
  /// Frees unreferenced objects. False if it cannot.
  virtual bool collect() = 0;
};

class GraphMemory;

/// A block of memory on one device, aligned to 64 bytes. Views share it.
class Storage : public RefCounted {
 public:
  /// Uninitialized memory. Throws a Failure with the requested and the free size.
  static RefPtr<Storage> allocate(Device device, size_t bytes);
  /// Host memory of another owner, such as a mapped file, which `keep` holds. It is read-only,
  /// unless it `is_own`: writes are private, as of a private mapping. Then it is charged to the
  /// budget at its first write, which allocates the memory.
  static RefPtr<Storage> borrow(const void* data, size_t bytes, std::shared_ptr<const void> keep,
                                bool is_own = false);
  /// GPU memory of `ending`, which is being destroyed. Called by StorageWatcher::ending().
  static RefPtr<Storage> take_over(Storage& ending);
  /// A symbol for a value of a chain, without memory.
  static RefPtr<Storage> symbol(uint64_t owner, int value);
  ~Storage() override;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  const Device& device() const { return device_; }
  uint64_t symbol_owner() const { return symbol_owner_; }
  int symbol_value() const { return symbol_value_; }
  bool is_read_only() const { return keep_ != nullptr && !is_own_; }
  /// Before its content is changed. Throws a Failure if its budget is exceeded.
  void note_write();

  uint32_t version = 0;  // number of in-place changes
  /// Set for a matrix that was made with rows of this many elements, of which no view sees the
  /// last: see empty_rows.
  int64_t pitch = 0;
  int64_t columns = 0;  // with a pitch: those that views see

 private:
  friend class DeviceStorages;
  Storage() = default;

  char* data_ = nullptr;
  size_t bytes_ = 0;
  Device device_;
  void* stream_ = nullptr;                       // of a GPU, in whose order the memory is released
  std::shared_ptr<GraphMemory> graph_memory_;    // null: the memory is its own
  Storage *before_ = nullptr, *next_ = nullptr;  // of all on GPUs
  std::shared_ptr<MemoryBudget> budget_;
  std::shared_ptr<const void> keep_;
  bool is_own_ = false;
  int symbol_value_ = 0;
  uint64_t symbol_owner_ = 0;
};

/// Is told of the memory on GPUs, by the threads that use it.
class StorageWatcher {
 public:
  virtual ~StorageWatcher() = default;
  /// For each that exists when the watch begins.
  virtual void found(Storage& storage) = 0;
  /// Before its memory is released, unless Storage::take_over() is called.
  virtual void ending(Storage& storage) = 0;
};
void watch_storages(StorageWatcher& watcher);
void unwatch_storages(StorageWatcher& watcher);

/// Host memory, cached for reuse. Blocks from 64 KiB on are cached, up to a quarter of the peak
/// use.
void* allocate_host_memory(size_t bytes);
void free_host_memory(void* data, size_t bytes);
/// Returns cached memory to the system.
void trim_host_memory();

}  // namespace flow::tensors
