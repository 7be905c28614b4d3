// Memory by size classes: a training step allocates the same sizes repeatedly, and fresh pages cost
// as much as writing them.
#include "kernels/tensor/storage.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/tensor/capture.hpp"
#include "kernels/tensor/fusion.hpp"
#include "kernels/tensor/runtime.hpp"

namespace flow::tensors {
namespace {

constexpr size_t kCachedFrom = size_t{64} << 10;
constexpr size_t kAlignment = 64;

// Eight classes per power of two: at most an eighth is wasted.
size_t class_of(size_t bytes) {
  if (bytes < kCachedFrom) return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

// Memory of a small tensor in addition to its elements: the objects that represent it.
constexpr size_t kObjects = 512;
size_t charged_for(size_t bytes) { return class_of(std::max<size_t>(bytes, 1)) + kObjects; }

// Large blocks are mapped separately, so that they return to the system at once, and begin at a
// page.
constexpr size_t kMappedFrom = size_t{1} << 20;

void* allocate_block(size_t size) {
  if (size < kMappedFrom) return std::aligned_alloc(kAlignment, size);
  void* mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  ::madvise(mapped, size, MADV_HUGEPAGE);  // if the system supports it
  return mapped;
}

void free_block(void* block, size_t size) {
  if (size < kMappedFrom || block == nullptr) return std::free(block);
  ::munmap(block, size);
}

class HostMemoryCache {
 public:
  void* take(size_t size) {
    std::lock_guard<std::mutex> hold(mutex_);
    auto found = blocks_.find(size);
    in_use_ += size;
    most_in_use_ = std::max(most_in_use_, in_use_);
    if (found == blocks_.end() || found->second.empty()) return nullptr;
    void* block = found->second.back();
    found->second.pop_back();
    cached_ -= size;
    return block;
  }

  // False if the caller frees it.
  bool put(void* data, size_t size) {
    std::lock_guard<std::mutex> hold(mutex_);
    in_use_ -= size;
    if (cached_ + in_use_ + size > most_in_use_ + most_in_use_ / 4) return false;
    blocks_[size].push_back(data);
    cached_ += size;
    return true;
  }

  void trim() {
    std::lock_guard<std::mutex> hold(mutex_);
    for (auto& [size, blocks] : blocks_)
      for (void* block : blocks) free_block(block, size);
    blocks_.clear();
    cached_ = 0;
    most_in_use_ = in_use_;
  }

 private:
  std::mutex mutex_;
  std::map<size_t, std::vector<void*>> blocks_;
  size_t cached_ = 0, in_use_ = 0, most_in_use_ = 0;
};

HostMemoryCache& host_memory_cache() {
  static HostMemoryCache* made =
      new HostMemoryCache;  // tensors may be dropped after static objects
  return *made;
}

}  // namespace

// All storages on GPUs, of all threads.
class DeviceStorages {
 public:
  static DeviceStorages& all() {
    static auto* made = new DeviceStorages;  // tensors may be dropped after static objects
    return *made;
  }
  void add(Storage& storage) {
    std::lock_guard lock(mutex_);
    link(storage);
  }
  /// Called by watchers.
  void link(Storage& storage) {
    storage.next_ = first_;
    if (first_ != nullptr) first_->before_ = &storage;
    first_ = &storage;
  }
  void remove(Storage& storage) {
    std::lock_guard lock(mutex_);
    for (StorageWatcher* each : watchers_) each->ending(storage);
    (storage.before_ == nullptr ? first_ : storage.before_->next_) = storage.next_;
    if (storage.next_ != nullptr) storage.next_->before_ = storage.before_;
  }
  void watch(StorageWatcher& watcher) {
    std::lock_guard lock(mutex_);
    for (Storage* each = first_; each != nullptr; each = each->next_) watcher.found(*each);
    watchers_.push_back(&watcher);
  }
  void unwatch(StorageWatcher& watcher) {
    std::lock_guard lock(mutex_);
    std::erase(watchers_, &watcher);
  }

 private:
  std::mutex mutex_;
  Storage* first_ = nullptr;
  std::vector<StorageWatcher*> watchers_;
};

void watch_storages(StorageWatcher& watcher) { DeviceStorages::all().watch(watcher); }
void unwatch_storages(StorageWatcher& watcher) { DeviceStorages::all().unwatch(watcher); }

std::string text_of(const Device& device) {
  if (device.kind == Device::symbol) return "flow.fuse";
  return device.kind == Device::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

void* allocate_host_memory(size_t bytes) {
  size_t size = class_of(std::max<size_t>(bytes, 1));
  if (size >= kCachedFrom) {
    if (void* block = host_memory_cache().take(size)) return block;
  }
  void* fresh = allocate_block(size);
  if (fresh != nullptr || size < kCachedFrom) return fresh;
  trim_host_memory();
  return allocate_block(size);
}

void free_host_memory(void* data, size_t bytes) {
  size_t size = class_of(std::max<size_t>(bytes, 1));
  if (size >= kCachedFrom && host_memory_cache().put(data, size)) return;
  free_block(data, size);
}

void trim_host_memory() { host_memory_cache().trim(); }

RefPtr<Storage> Storage::symbol(uint64_t owner, int value) {
  RefPtr<Storage> made(new Storage);
  made->device_ = {Device::symbol, 0};
  made->symbol_owner_ = owner;
  made->symbol_value_ = value;
  return made;
}

RefPtr<Storage> Storage::allocate(Device device, size_t bytes) {
  if (device.kind == Device::symbol) reject_symbol();
  RefPtr<Storage> made(new Storage);
  made->device_ = device;
  if (device.kind == Device::cuda) {
    made->stream_ = stream_of(device).native;
    made->data_ = static_cast<char*>(allocate_device_memory(device, bytes));
    made->bytes_ = bytes;
    if (runtime().capture != nullptr) made->graph_memory_ = runtime().capture->memory();
    DeviceStorages::all().add(*made);
    if (runtime().budget != nullptr) runtime().budget->note_device(bytes);
    return made;
  }
  if (runtime().budget != nullptr) {
    runtime().budget->charge(charged_for(bytes));
    made->budget_ = runtime().budget;
    made->bytes_ = bytes;  // released if the next line throws
  }
  made->data_ = static_cast<char*>(allocate_host_memory(bytes));
  if (made->data_ == nullptr) {
    auto free_bytes = static_cast<uint64_t>(::sysconf(_SC_AVPHYS_PAGES)) *
                      static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    throw TensorError(fmt::format(
        "out of memory: a tensor of {} bytes was requested, and the machine has {} bytes free",
        bytes, free_bytes));
  }
  made->bytes_ = bytes;
  return made;
}

RefPtr<Storage> Storage::borrow(const void* data, size_t bytes, std::shared_ptr<const void> keep,
                                bool is_own) {
  RefPtr<Storage> made(new Storage);
  made->data_ = const_cast<char*>(static_cast<const char*>(data));
  made->bytes_ = bytes;
  made->keep_ = std::move(keep);
  made->is_own_ = is_own;
  return made;
}

RefPtr<Storage> Storage::take_over(Storage& ending) {
  RefPtr<Storage> made(new Storage);
  made->data_ = std::exchange(ending.data_, nullptr);
  made->bytes_ = ending.bytes_;
  made->device_ = ending.device_;
  made->stream_ = ending.stream_;
  made->graph_memory_ = std::move(ending.graph_memory_);
  made->version = ending.version;
  made->pitch = ending.pitch;
  made->columns = ending.columns;
  DeviceStorages::all().link(*made);
  return made;
}

void Storage::note_write() {
  version++;
  if (runtime().capture != nullptr && device_.kind == Device::cuda) runtime().capture->write(*this);
  if (keep_ == nullptr || budget_ != nullptr || runtime().budget == nullptr) return;
  runtime().budget->charge(bytes_);
  budget_ = runtime().budget;
}

Storage::~Storage() {
  if (keep_ != nullptr) {
    if (budget_ != nullptr) budget_->release(bytes_);
    return;
  }
  if (device_.kind == Device::cuda) {
    if (data_ == nullptr) return;  // its allocation failed
    DeviceStorages::all().remove(*this);
    if (graph_memory_ != nullptr && data_ != nullptr)
      graph_memory_->give(data_);
    else
      release_device_memory(device_, stream_, data_, bytes_);
    return;
  }
  if (data_ != nullptr) free_host_memory(data_, bytes_);
  if (budget_ != nullptr) budget_->release(charged_for(bytes_));
}

}  // namespace flow::tensors
