// The error that stopped the engine.
#pragma once
#include <atomic>
#include <mutex>
#include <optional>

#include "engine/runtime/event_log.hpp"
#include "flow/result.hpp"

namespace flow {

/// Thread-safe. Keeps the first error and writes it to the engine's log.
class StopCause {
 public:
  void set(const Error& error) {
    {
      std::lock_guard lock(mutex_);
      if (error_) return;
      error_ = error;
      is_set_.store(true, std::memory_order_release);
    }
    log_engine_failure(error);
  }
  bool is_set() const { return is_set_.load(std::memory_order_acquire); }
  std::optional<Error> get() const {
    if (!is_set()) return std::nullopt;
    std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Error> error_;
  std::atomic<bool> is_set_ = false;
};

}  // namespace flow
