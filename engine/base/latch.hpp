// A thread waits for the outcome of a turn.
#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>

namespace flow {

class Latch {
 public:
  /// A simulator that has one thread sets it for that thread. wait() calls it again and again until
  /// the latch is open: it runs what opens the latch. Null in the product.
  static inline thread_local const std::function<void()>* while_waiting = nullptr;

  void open(bool value) {
    std::lock_guard lock(mutex_);
    value_ = value;
    wake_.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    while (while_waiting != nullptr && !value_) {
      lock.unlock();
      (*while_waiting)();
      lock.lock();
    }
    wake_.wait(lock, [this] { return value_.has_value(); });
    return *value_;
  }
  /// Whether it is open within this time.
  bool is_open_within(std::chrono::milliseconds most) {
    std::unique_lock lock(mutex_);
    return wake_.wait_for(lock, most, [this] { return value_.has_value(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::optional<bool> value_;
};

}  // namespace flow
