#include "engine/worker/build_queue.hpp"

#include "engine/base/engine_thread.hpp"

namespace flow {

BuildQueue::~BuildQueue() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void BuildQueue::add(BuildOrder order, OnBuilt on_built) {
  std::lock_guard lock(mutex_);
  orders_.emplace_back(std::move(order), std::move(on_built));
  if (!thread_.joinable()) thread_ = engine_thread([this] { work(); });
  wake_.notify_one();
}

void BuildQueue::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return quit_ || !orders_.empty(); });
    if (quit_) return;
    auto [order, on_built] = std::move(orders_.front());
    orders_.pop_front();
    lock.unlock();
    on_built(builder_.build(order));
    lock.lock();
  }
}

}  // namespace flow
