#include "engine/cluster/content/line.hpp"

#include <utility>

namespace flow::cluster {

void Line::queue(content::Message message) {
  std::lock_guard lock(mutex_);
  if (!is_over_) unsent_.push_back(std::move(message));
}

void Line::flush() {
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

void Line::end() {
  std::lock_guard lock(mutex_);
  is_over_ = true;
  unsent_.clear();
}

}  // namespace flow::cluster
