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
  /// Messages are sent together: when there are many, when it is a millisecond later, or `now`.
  void send(const wire::FromExecutor& message, bool now);
  void flush();
  bool has_queued();
  /// Before a save is sent: an answer to an earlier one of this name is not for it.
  void forget_saved(const std::string& name);
  /// Blocks until the worker says whether `name` is durable; false also when it is not any more
  /// ours.
  bool wait_saved(const std::string& name);

  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }
  /// A program of the attempt was told to end, not only asked to stop when it can.
  bool terminated() const { return terminated_.load(std::memory_order_relaxed); }
  /// The process group to end with this attempt; 0 for none.
  void set_group(int group) { group_ = group; }
  std::string bundle(const std::string& digest);
  const std::map<std::string, std::string>& environment(const std::string& run);

 private:
  void read_frames();
  void flush_late();
  void handle(wire::ToExecutor& message);
  [[noreturn]] void end();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<wire::Start> queue_;
  std::map<std::string, std::string> bundles_;
  std::map<std::string, std::map<std::string, std::string>> environments_;
  wire::AttemptName current_;
  std::map<std::string, bool> saved_;
  std::atomic<bool> stopping_{false}, terminated_{false};
  std::atomic<int> group_{0};

  std::mutex sending_;
  std::condition_variable buffered_;
  std::string out_;
  std::thread reader_, flusher_;
};

bool same_attempt(const wire::AttemptName& a, const wire::AttemptName& b);

}  // namespace flow
