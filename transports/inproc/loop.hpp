// The event loop of one transport, on its own thread: runs posted calls in order and checks the
// deadlines of its links periodically.
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

/// One end of a connection, served by an event loop.
class LoopClient {
 public:
  virtual ~LoopClient() = default;
  /// Called on the loop's thread, at least every kCheckMs.
  virtual void check_deadlines(int64_t now_us) = 0;
  /// Called when the loop stops. Posts the remaining callbacks.
  virtual void end() = 0;
};

constexpr int64_t kCheckMs = 20;

/// Thread-safe.
class EventLoop {
 public:
  EventLoop();
  ~EventLoop();  // stops it

  /// Runs `call` on the loop's thread, in posting order. Returns false and drops it if the loop has
  /// stopped.
  bool post(std::function<void()> call);
  /// False if the loop is stopping.
  bool watch(const void* key, std::shared_ptr<LoopClient> watched);
  void forget(const void* key);
  /// Ends all clients, runs the posted calls and joins the thread.
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
  bool closed_ = false;   // accepts no more clients
  bool stopped_ = false;  // accepts no more calls
  std::thread thread_;
};

}  // namespace flow::inproc
