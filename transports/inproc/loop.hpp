// The thread of one transport: calls what it is given, in order, and looks at its links now and
// then.
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

/// What a loop looks after: one side of a connection.
class Watched {
 public:
  virtual ~Watched() = default;
  /// On the loop's thread, at least every kLookMs.
  virtual void check_deadlines(int64_t now_us) = 0;
  /// The loop ends: what this still has to tell is posted now.
  virtual void end() = 0;
};

constexpr int64_t kCheckMs = 20;

/// Thread-safe.
class Loop {
 public:
  Loop();
  ~Loop();  // stops

  /// Called on the thread, after what was posted before. False, and nothing happens, where the loop
  /// has stopped.
  bool post(std::function<void()> call);
  /// False where the loop stops already.
  bool watch(const void* key, std::shared_ptr<Watched> watched);
  void forget(const void* key);
  /// Ends what is watched, calls what was posted, ends the thread.
  void stop();

 private:
  void run();
  bool take(std::vector<std::function<void()>>& calls);  // false: stopped, and nothing is left
  void check_deadlines();
  std::vector<std::shared_ptr<Watched>> watched();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::function<void()>> calls_;
  std::multimap<const void*, std::shared_ptr<Watched>> watched_;
  bool closed_ = false;   // watches nothing more
  bool stopped_ = false;  // takes nothing more
  std::thread thread_;
};

}  // namespace flow::inproc
