// A thread waits for the outcome of a turn.
#pragma once
#include <condition_variable>
#include <mutex>
#include <optional>

namespace flow {

class Latch {
 public:
  void open(bool value) {
    std::lock_guard lock(mutex_);
    value_ = value;
    wake_.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return value_.has_value(); });
    return *value_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::optional<bool> value_;
};

}  // namespace flow
