// The thread of one transport: runs posted calls in order and checks the deadlines of its links
// periodically.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace flow::inproc {

/// One side of a connection, which a loop serves.
class LoopClient {
 public:
  virtual ~LoopClient() = default;
  /// On the loop's thread, at least every kLookMs.
  virtual void check_deadlines(int64_t now_us) = 0;
  /// The loop ends: remaining callbacks are posted now.
  virtual void end() = 0;
};

constexpr int64_t kCheckMs = 20;

/// Thread-safe.
class EventLoop {
 public:
  EventLoop();
  ~EventLoop();  // stops it

  /// Runs `call` on the thread, after calls that were posted before. False, without effect, if the
  /// loop has stopped.
  bool post(std::function<void()> call);
  /// False if the loop is stopping.
  bool watch(const void* key, std::shared_ptr<LoopClient> watched);
  void forget(const void* key);
  /// Ends all watched sides, runs posted calls, ends the thread.
  void stop();

 private:
  void run();
  bool take(std::vector<std::function<void()>>& calls);  // false: stopped, and no call is left
  void check_deadlines();
  std::vector<std::shared_ptr<LoopClient>> watched();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> calls_;
  std::multimap<const void*, std::shared_ptr<LoopClient>> watched_;
  bool closed_ = false;   // accepts no more sides
  bool stopped_ = false;  // accepts no more calls
  std::thread thread_;
};

}  // namespace flow::inproc
