// An executor's side of the wire. The main thread runs attempts in order and reads the wire while
// it waits; another looks at the wire, and sends what was left unsent, during an attempt that takes
// longer than a millisecond. So a chain of short attempts wakes nobody else.
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
  /// The next order; blocks. Sends what is buffered before it sleeps.
  wire::Start next();
  /// Blocks until the start of the attempt that next() gave is durable. Until then it may compute,
  /// and say what it came to; nothing that it does may last or be seen by others.
  void wait_released();
  /// Messages are sent together: when there are many, one or two milliseconds later, or `now`.
  void send(const wire::FromExecutor& message, bool now);
  void flush();
  bool has_queued();
  /// Sends what is held back and waits until the worker has it: what this attempt writes to stderr
  /// from now on is not taken for that of the one before it.
  void wait_until_received();
  /// Before a save is sent: an answer to an earlier one of this name is not for it.
  void forget_saved(const std::string& name);
  /// Blocks until the worker says whether `name` is durable; false also when it is not any more
  /// ours.
  bool wait_saved(const std::string& name);
  /// The same on another thread than the main one, while the attempt of this name runs.
  bool wait_saved_in_background(const wire::AttemptName& id, const std::string& name);

  /// What all ranks said of how they are reached, in their order; nothing where this one is to
  /// stop before that, or that is not known within `limit_ms`.
  std::optional<std::vector<std::string>> wait_peers(int64_t limit_ms);

  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }
  /// Called, by whichever thread reads, where the attempt is to be killed as soon as what it asked
  /// to keep is written.
  void set_on_kill_after_flush(std::function<void(const wire::AttemptName&)> callback);
  /// Called likewise whenever the attempt is told to stop, until the next one or null.
  void set_on_stop(std::function<void()> callback);
  /// A program of the attempt was told to end, not only asked to stop when it can.
  bool terminated() const { return terminated_.load(std::memory_order_relaxed); }
  /// The process group to end with this attempt; 0 for none.
  void set_group(int group) { group_ = group; }
  std::string bundle(const std::string& digest);
  /// Of the run's submitter. A later one of the same run is another object.
  std::shared_ptr<const std::map<std::string, std::string>> environment(const std::string& run);

 private:
  enum class ReadingThread : uint8_t { none, main, background };
  struct QueuedStart {
    wire::Start start;
    uint64_t number;
  };

  void run_background();
  void read_in_background(std::unique_lock<std::mutex>& lock);
  /// Until a message was handled, by whichever thread reads.
  void wait_message(std::unique_lock<std::mutex>& lock);
  bool is_chain() const;
  void spin_until(std::unique_lock<std::mutex>& lock, int64_t us_max,
                  const std::function<bool()>& is_done);
  /// Reads once and handles what came; false where nothing was there and `block` is not set.
  bool read_once(std::unique_lock<std::mutex>& lock, ReadingThread who, bool block);
  void handle(wire::ToExecutor& message);
  void handle_stop(const wire::Stop& stop);
  [[noreturn]] void end();

  std::mutex mutex_;
  std::condition_variable changed_;
  ReadingThread reader_ = ReadingThread::none;
  FrameCutter cutter_;  // the reader's, as is chunk_
  std::string chunk_;
  std::deque<QueuedStart> queue_;
  uint64_t received_ = 0;        // Starts
  uint64_t released_ = 0;        // the newest commit that is durable
  uint64_t burst_ = 0;           // orders that came since there was none
  uint64_t current_number_ = 0;  // 0 where no attempt runs
  uint64_t current_commit_ = 0;  // that its start is part of
  int64_t began_us_ = 0;         // when the newest attempt began or was let go
  bool is_main_waiting_ = false;
  // The worker ends this process when it has sent kRememberedMax of them.
  std::map<std::string, std::string> bundles_;
  std::map<std::string, std::shared_ptr<const std::map<std::string, std::string>>> environments_;
  wire::AttemptName current_;
  std::map<std::string, bool> saved_;
  std::vector<std::string> peers_;  // of the current attempt's gang; empty: not told yet
  std::condition_variable saved_changed_;
  std::function<void(const wire::AttemptName&)> on_kill_after_flush_;
  std::function<void()> on_stop_;
  std::atomic<bool> stopping_{false}, terminated_{false}, ended_{false};
  std::atomic<int> group_{0};

  bool is_background_asleep_ = false;
  std::condition_variable attempt_began_;

  std::mutex send_mutex_;
  std::string out_;
  std::thread background_;
};

bool same_attempt(const wire::AttemptName& a, const wire::AttemptName& b);

}  // namespace flow
