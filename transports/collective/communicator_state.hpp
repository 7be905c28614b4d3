// What the parts of one communicator share: who is on this node, how a wait goes, how it fails.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "flow/collective.hpp"
#include "transports/collective/segment.hpp"

namespace flow::collective {

/// Tells of the end of another process, where the system does.
class ProcessExit {
 public:
  ProcessExit() = default;
  explicit ProcessExit(int pid);
  ProcessExit(ProcessExit&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  ProcessExit& operator=(ProcessExit&& other) noexcept;
  ~ProcessExit();
  bool has_exited() const;

 private:
  int descriptor_ = -1;
};

/// A rank on this node.
struct LocalRank {
  int rank = 0;
  int pid = 0;
  ProcessExit exit;
  Segment segment;
};

struct CommunicatorOptions {
  int rank = 0, ranks = 1;
  int64_t deadline_ms = 0;  // of any wait; 0: none
};

class CommunicatorState {
 public:
  /// `local_ranks` by rank, this one among them.
  CommunicatorState(const CommunicatorOptions& options, std::vector<LocalRank> local_ranks);
  CommunicatorState(const CommunicatorState&) = delete;

  int rank() const { return options_.rank; }
  int ranks() const { return options_.ranks; }
  const std::vector<LocalRank>& local_ranks() const { return local_ranks_; }
  int me() const { return me_; }  // among the members
  Control& control() const { return *control_; }
  const LocalRank* local_rank(int rank) const;  // null: on another node

  // Of whoever runs a call:

  /// The others of this node have mapped what this one shares, and so has this one theirs.
  bool join(int64_t deadline_ms);
  /// Nothing comes from this rank any more.
  void leave();
  /// The call that is under way, for what is told of it.
  void enter_call(const Signature& call);
  void exit_call();
  /// Outside of any call: the messages that are waited for, of which this is the next. Null: none.
  void await_message(const CollectiveCall* call);
  /// This rank sends nothing more, and receives nothing.
  void end();
  /// All ranks have come to the last call: what fails from now on is only their end.
  void complete();
  /// Nobody that is waited for from now on ends the communicator by being late.
  void wait_without_limit() { deadline_ms_ = 0; }
  /// Waits until `missing` gives no rank any more, -1. False: the communicator has failed. What is
  /// to be moved meanwhile moves.
  template <typename Missing>
  bool wait(Missing missing) {
    for (int i = 0; i < spins_; i++) {
      if (missing() < 0) return true;
      pause();
    }
    return wait_moving(missing);
  }
  /// The same for what only moves when it is pumped.
  template <typename Missing>
  bool wait_moving(Missing missing) {
    return wait_long([](void* f) { return (*static_cast<Missing*>(f))(); }, &missing);
  }
  /// Whether another rank of this node has failed: its cause is this one's. Of any thread.
  bool take_failures();
  /// Moves messages, within waits.
  std::function<void()> progress;
  // Of a rank on another node:
  std::function<LastCall(int rank)> remote_last_call;
  std::function<bool(int rank)> remote_has_left;
  std::function<bool(int rank)> remote_has_ended;
  std::function<WaitForEdge(int rank)> remote_wait_edge;
  std::function<void(const WaitForEdge&)> send_wait_edge;  // to those

  // Of any thread:

  /// The first cause stays, and is told to all.
  void fail(const Error& cause);
  /// Ranks of this node that have failed, or died before they left: the first of them is the cause.
  void check_for_dead_ranks();
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  Error cause() const;
  void ring_own_doorbell() { ring_doorbell(*control_); }
  /// Wakes who sleeps. After what it waits for was written.
  static void ring_doorbell(Control& control);
  /// Tells the other nodes. Set before there is anything to fail.
  std::function<void(const Error&)> on_fail;
  std::function<void()> on_end;
  std::string call_text() const;  // "all_reduce #17", of the call under way
  /// After a failure: where it was when it failed.
  RankProgress rank_progress() const;
  bool has_ended(int rank) const;

 private:
  static void pause();
  bool wait_long(int (*missing)(void*), void* context);
  void sleep(int (*missing)(void*), void* context);
  void check_missing(int (*missing)(void*), void* context, int64_t waited_us);
  void check_deadline(int missing_rank, int64_t waited_us);
  void clear_wait_edge();
  bool has_left(int rank) const;
  WaitForEdge wait_edge_of(int rank) const;
  bool is_waiting_for_other(int rank) const;
  std::string deadlock_cycle_text(const WaitForEdge& own) const;
  std::vector<int> waiting() const;
  void publish(const Error& cause);
  LastCall last_call_of(int rank) const;

  const CommunicatorOptions options_;
  int64_t deadline_ms_ = 0;
  std::vector<LocalRank> local_ranks_;
  int me_ = 0, spins_ = 0;
  Control* control_ = nullptr;
  bool has_sent_wait_edge_ = false;
  std::atomic<uint64_t> entered_{0};  // a Record
  std::atomic<uint32_t> message_{0};  // what and with whom; 0: none is waited for
  std::atomic<bool> has_failed_{false};
  bool is_complete_ = false;  // under mutex_
  mutable std::mutex mutex_;
  Error cause_;
};

}  // namespace flow::collective
