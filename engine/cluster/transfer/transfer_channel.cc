#include "engine/cluster/transfer/transfer_channel.hpp"

#include <fmt/format.h>

#include <utility>

namespace flow::cluster {

namespace {

/// Unused memory of full chunks, shared by all transfers of the process; last in, first out.
class SpareMemory {
 public:
  std::unique_ptr<char[]> take() {
    std::lock_guard lock(mutex_);
    if (spare_.empty()) return nullptr;
    std::unique_ptr<char[]> memory = std::move(spare_.back());
    spare_.pop_back();
    return memory;
  }
  void recycle(std::unique_ptr<char[]> memory) {
    std::lock_guard lock(mutex_);
    if (spare_.size() < kMost) spare_.push_back(std::move(memory));
  }

 private:
  static constexpr size_t kMost = 8;
  std::mutex mutex_;
  std::vector<std::unique_ptr<char[]>> spare_;
};

SpareMemory& spare_memory() {
  // Never destroyed: threads may use it while the process exits.
  static auto* all = new SpareMemory;
  return *all;
}

std::unique_ptr<char[]> memory_for(size_t size) {
  auto memory = size == kChunkBytes ? spare_memory().take() : nullptr;
  return memory ? std::move(memory) : std::unique_ptr<char[]>(new char[size + kBulkSealBytes]);
}

}  // namespace

Chunk::Chunk(size_t size) : size(size), bytes(memory_for(size)) {}

Chunk::~Chunk() {
  if (size == kChunkBytes) spare_memory().recycle(std::move(bytes));
}

void TransferChannel::queue(blob_protocol::Message message) {
  std::lock_guard lock(mutex_);
  if (!is_over_) unsent_.push_back(std::move(message));
}

void TransferChannel::flush() {
  std::unique_lock lock(mutex_);
  if (std::exchange(is_sending_, true)) return;
  while (!unsent_.empty()) {
    std::string bytes = unsent_.front().SerializeAsString();
    unsent_.pop_front();
    lock.unlock();
    send_(bytes);
    lock.lock();
  }
  is_sending_ = false;
}

Error TransferChannel::overload() const {
  return environment_error(
      fmt::format("this machine has too many transfers at a time: {} jobs of transfers wait for a "
                  "thread. Wait until some have ended",
                  thread_pool.queue_max()));
}

void TransferChannel::end() {
  std::lock_guard lock(mutex_);
  is_over_ = true;
  unsent_.clear();
}

}  // namespace flow::cluster
