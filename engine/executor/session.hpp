// An executor's side of the wire: one thread reads, any thread sends, the main thread runs attempts
// in order.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/executor/protocol.pb.h"
#include "engine/executor/wire.hpp"

namespace flow {

class Session {
 public:
  Session();
  /// The next order; blocks. Sends what is buffered before it sleeps.
  wire::Start next();
  void send(const wire::FromExecutor& message, bool now);
  void flush();
  /// Blocks until the worker says whether `name` is durable; false also when it is not any more
  /// ours.
  bool wait_saved(const std::string& name);

  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }
  /// The process group to end with this attempt; 0 for none.
  void set_group(int group) { group_ = group; }
  std::string bundle(const std::string& digest);
  const std::map<std::string, std::string>& environment(const std::string& run);

 private:
  void read_frames();
  void handle(wire::ToExecutor& message);
  [[noreturn]] void end();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<wire::Start> queue_;
  std::map<std::string, std::string> bundles_;
  std::map<std::string, std::map<std::string, std::string>> environments_;
  wire::AttemptName current_;
  std::map<std::string, bool> saved_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> group_{0};

  std::mutex sending_;
  std::string out_;
  int64_t buffered_since_us_ = 0;
  std::thread reader_;
};

bool same_attempt(const wire::AttemptName& a, const wire::AttemptName& b);

}  // namespace flow
