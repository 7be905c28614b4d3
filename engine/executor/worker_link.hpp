// An executor's connection to its worker. The main thread runs attempts in order and reads the
// connection while it waits. A background thread reads and flushes it during attempts that take
// longer than a millisecond, so that a chain of short attempts wakes no other thread.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/protocol/executor.pb.h"
#include "engine/protocol/frames.hpp"

namespace flow {

class WorkerLink {
 public:
  WorkerLink();
  /// Blocks for the next order. Sends buffered messages before it sleeps.
  wire::Start next();
  /// Blocks until the start of the attempt from next() is durable. Before that the attempt may
  /// compute and report its result (speculative start), but it must cause no lasting or visible
  /// effect.
  void wait_released();
  /// Buffers a message. Messages are sent together: when there are many, after one or two ms, or
  /// `now`.
  void send(const wire::FromExecutor& message, bool now);
  void flush();
  bool has_queued();
  /// Sends buffered messages and waits until the worker has received them, so that later output on
  /// stderr is not attributed to the previous attempt.
  void wait_until_received();
  /// Call this before sending a save: drops the answer to an earlier save of this name.
  void forget_saved(const std::string& name);
  /// Blocks until the worker reports whether `name` is durable. Also false if this attempt is no
  /// longer current.
  bool wait_saved(const std::string& name);
  /// The same for a thread other than the main one, while the named attempt runs.
  bool wait_saved_in_background(const wire::AttemptName& id, const std::string& name);

  /// The addresses of all ranks, in rank order. Nothing if this rank is asked to stop first or
  /// after `limit_ms`.
  std::optional<std::vector<std::string>> wait_peers(int64_t limit_ms);

  bool stopping() const { return stopping_.load(std::memory_order_acquire); }
  /// Whether the newest stop asks to save and end, as that of a worker that drains does.
  bool is_drained() const { return is_drained_.load(std::memory_order_relaxed); }
  /// The time that the newest stop gives; `of_order` if it is the order's.
  int64_t stop_grace_ms(int64_t of_order) const {
    int64_t own = stop_grace_ms_.load(std::memory_order_relaxed);
    return own > 0 ? own : of_order;
  }
  /// Sets the callback for the command to kill the attempt as soon as its checkpoints are written.
  /// It runs on the reading thread.
  void set_on_kill_after_flush(std::function<void(const wire::AttemptName&)> callback);
  /// Sets the callback for stop commands, until it is replaced. It runs on the reading thread.
  void set_on_stop(std::function<void()> callback);
  /// While `reconnect` is set, the attempt outlives the worker: if the connection breaks before the
  /// attempt was asked to stop, the reading thread calls it for the descriptor of a connection to
  /// another worker. With -1, or if the attempt stops already, the process ends when it has
  /// stopped, or `grace_ms` later. After a stop that is not gentle it ends at once.
  void set_on_lost(std::function<int()> reconnect, int64_t grace_ms = 0);
  /// Sets the callback for an order of another worker that continues the current attempt. It runs
  /// on the reading thread when the start of the order's attempt is durable.
  void set_on_adopted(std::function<void()> callback);
  /// The newest order of that kind, once.
  std::optional<wire::Start> take_adoption();
  /// Whether the attempt must end, and was not only asked to stop.
  bool terminated() const { return terminated_.load(std::memory_order_relaxed); }
  /// Sets the process group that is killed with this attempt; 0: none.
  void set_group(int group) { group_ = group; }
  std::string bundle(const std::string& digest);
  /// The environment of the run's submitter. A later environment of the run is a different object.
  std::shared_ptr<const std::map<std::string, std::string>> environment(const std::string& run);

 private:
  enum class ReadingThread : uint8_t { none, main, background };
  struct QueuedStart {
    wire::Start start;
    uint64_t number;
  };

  void run_background();
  void read_in_background(std::unique_lock<std::mutex>& lock);
  /// Blocks until some thread has handled a message.
  void wait_message(std::unique_lock<std::mutex>& lock);
  bool is_chain() const;
  void spin_until(std::unique_lock<std::mutex>& lock, int64_t us_max,
                  const std::function<bool()>& is_done);
  /// Reads once and handles the messages. Returns false if there was nothing and `block` is not
  /// set.
  bool read_once(std::unique_lock<std::mutex>& lock, ReadingThread reader, bool block);
  void handle(wire::ToExecutor& message);
  void handle_start(wire::Start& start);
  void handle_stop(const wire::Stop& stop);
  /// Calls on_adopted_ if there is an order whose start is durable.
  void announce_adoption();
  bool outlives_worker() const { return outlives_ && !terminated_; }
  /// The connection is lost: waits for another one, or ends.
  void reconnect(std::unique_lock<std::mutex>& lock);
  void write_out();
  [[noreturn]] void end();

  std::mutex mutex_;
  std::condition_variable changed_;
  ReadingThread reader_ = ReadingThread::none;
  FrameCutter cutter_;  // of the reading thread, like chunk_
  std::string chunk_;
  std::deque<QueuedStart> queue_;
  uint64_t received_ = 0;        // number of received Starts
  uint64_t released_ = 0;        // the newest commit that is durable
  uint64_t burst_ = 0;           // orders that arrived since the queue was last empty
  uint64_t current_number_ = 0;  // 0 if no attempt runs
  uint64_t current_commit_ = 0;  // the commit of its start
  int64_t began_us_ = 0;         // when the newest attempt began or was released
  bool is_main_waiting_ = false;
  // The worker ends this process after it has sent kRememberedMax bundles.
  std::map<std::string, std::string> bundles_;
  std::map<std::string, std::shared_ptr<const std::map<std::string, std::string>>> environments_;
  wire::AttemptName current_;
  std::map<std::string, bool> saved_;
  std::vector<std::string> peers_;  // of the current attempt's gang; empty: not received yet
  std::condition_variable saved_changed_;
  std::function<void(const wire::AttemptName&)> on_kill_after_flush_;
  std::function<void()> on_stop_, on_adopted_;
  std::function<int()> on_lost_;
  int64_t lost_grace_ms_ = 0;
  std::optional<wire::Start> adoption_;
  std::atomic<int64_t> stop_grace_ms_{0};
  std::atomic<bool> stopping_{false}, terminated_{false}, ended_{false}, is_drained_{false};
  std::atomic<bool> outlives_{false};  // on_lost_ is set
  std::atomic<bool> is_lost_{false};   // there is no connection; messages are dropped
  std::atomic<int> group_{0};

  bool is_background_asleep_ = false;
  std::condition_variable attempt_began_;

  std::mutex send_mutex_;
  std::string out_;
  std::thread background_;
};

bool same_attempt(const wire::AttemptName& a, const wire::AttemptName& b);

}  // namespace flow
