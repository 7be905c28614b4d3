// Group commit: the decisions of turns are written and become durable, on the turn's thread or on a
// separate thread; afterwards the effects are executed.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/runtime/commits.hpp"
#include "engine/runtime/stop_cause.hpp"
#include "engine/store/store.hpp"
#include "engine/telemetry/engine_telemetry.hpp"

namespace flow {

/// What a commit asks of the parts of the engine.
class CommitSteps {
 public:
  virtual ~CommitSteps() = default;
  // On the turn's thread.
  /// Whether an attempt of the open batch computes before its start is durable.
  virtual bool has_speculative_start() const = 0;
  /// Sends the orders of the open batch, which wait for the release of this commit.
  virtual void prefetch_orders(uint64_t commit) = 0;
  virtual void deliver(std::vector<Event> events) = 0;
  virtual void execute(const std::vector<core::Command>& effects) = 0;
  // On the thread that writes.
  virtual void ack_logs(size_t cost) = 0;
  /// The commit of this number and all before it are durable.
  virtual void release(uint64_t commit) = 0;
  /// A deferred write is done: the next turn is to finish it.
  virtual void on_written() = 0;
};

/// Performs one deferred write at a time: on a thread of its own, or if that was not started on the
/// thread that calls write_here() or await(). begin() and await() are for the turn's thread.
class DeferredWriter {
 public:
  /// `write` performs a write. `after` follows with its number when it counts as written.
  DeferredWriter(std::function<Status()> write,
                 std::function<void(uint64_t number, const Status& status)> after)
      : write_(std::move(write)), after_(std::move(after)) {}
  ~DeferredWriter() { quit(); }

  void start_thread();
  void quit();  // ends the thread, after a write that has begun
  void begin(uint64_t number);
  /// Waits for the write; its status, or nothing if none has begun.
  std::optional<Status> await();
  /// Performs the write that has begun; false if there is none. Only without a thread.
  bool write_here();
  bool is_idle() const { return phase_ == Phase::idle; }
  bool is_writing() const { return phase_ == Phase::writing; }
  bool is_written() const { return phase_ == Phase::written; }

 private:
  enum class Phase : uint8_t { idle, writing, written };
  void run();
  void write();

  const std::function<Status()> write_;
  const std::function<void(uint64_t, const Status&)> after_;
  std::mutex mutex_;
  std::condition_variable begun_, written_;
  std::atomic<Phase> phase_ = Phase::idle;
  uint64_t number_ = 0;
  Status status_;
  bool is_quitting_ = false;
  std::thread thread_;
};

/// Used by the turn's thread, except where noted.
class GroupCommit {
 public:
  /// `state_dir` has the lock file whose identity proves that the state is still there.
  GroupCommit(Store& store, const core::State& state, Commits& commits, StopCause& stop,
              CommitSteps& steps, EngineTelemetry& telemetry, std::string state_dir);

  /// Starts the writing thread. Without it, deferred writes wait for write_deferred(), or for the
  /// turn that needs them.
  void start_thread() { writer_.start_thread(); }
  /// Ends the writing thread. From any thread, after the last turn.
  void quit() { writer_.quit(); }

  /// Writes what is open and makes it durable: here, or if that is much and `may_defer`, on the
  /// writing thread while further turns decide. What they decide then is the next commit.
  void commit(bool may_defer);
  /// Waits for a deferred write and finishes that commit.
  void await();
  /// Performs the deferred write on the calling thread; the next turn finishes it. False if there
  /// is none. Only without the writing thread.
  bool write_deferred() { return writer_.write_here(); }
  /// Whether a commit waits for a turn: to be finished, or to begin. With the inbox's lock.
  bool has_work() const;
  bool is_written() const { return writer_.is_written(); }

  /// The next commit holds a snapshot.
  void request_snapshot() { journal_.is_snapshot_requested = true; }
  /// Bytes in the journal when the state was recovered.
  void set_journal_bytes(uint64_t bytes) { journal_.bytes = bytes; }
  /// Only within an outcome: called when all that the commit holds has been executed.
  void after_effects(std::function<void()> effect) { after_effects_.push_back(std::move(effect)); }

 private:
  struct JournalSize {
    uint64_t bytes = 0, snapshot_bytes = 0, snapshot_sequence = 0;
    bool is_snapshot_requested = false;
  };
  bool is_snapshot_due() const;
  void add_snapshot();
  Commit take_open();
  Status write(Commit& commit);
  void act_early(Commit& commit);
  void begin_deferred();
  void finish(Commit commit, const Status& written);
  uint64_t lock_inode() const;

  Store& store_;
  const core::State& state_;
  Commits& commits_;
  StopCause& stop_;
  CommitSteps& steps_;
  EngineTelemetry& telemetry_;
  const std::string state_dir_;
  const uint64_t lock_inode_;  // no other file gets this number while the lock is open
  JournalSize journal_;
  std::vector<std::function<void()>> after_effects_;  // of the commit that is being finished
  DeferredWriter writer_;
};

}  // namespace flow
