// Shared by the verbs of a cluster.
#pragma once
#include <algorithm>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <mutex>
#include <string>

#include "engine/cli/display/common.hpp"
#include "engine/cli/display/signals.hpp"

namespace flow::cli {

constexpr int64_t kPollMs = 500;  // interval at which changes are polled

/// Waits for signals, and for a requested end.
class SignalWait {
 public:
  explicit SignalWait(int also = 0) : signals_([this](int count) { note(count); }, also) {}
  void end() { note(kEnd); }
  /// Blocks until `count` signals arrived or the end was requested.
  void wait(int signals) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return count_ >= signals; });
  }
  /// The same with a time limit; false if it expired.
  bool wait_for(int signals, int64_t ms) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::milliseconds(ms),
                             [&] { return count_ >= signals; });
  }

 private:
  static constexpr int kEnd = INT_MAX;
  void note(int count) {
    std::lock_guard lock(mutex_);
    count_ = std::max(count_, count);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
  Signals signals_;
};

/// Of a "HOST:PORT".
inline std::string metrics_url(const std::string& address) {
  return "http://" + address + "/metrics";
}

/// Prints one line about an event, with the time.
inline void print_note(const std::string& text) {
  print_line(local_time(now_ms()) + "  " + text);
  flush_output();
}

}  // namespace flow::cli
