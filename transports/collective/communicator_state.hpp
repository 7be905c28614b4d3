// State that the parts of one communicator share: the ranks of this node, how to wait, how to fail.
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

/// Detects the exit of another process, where the system supports it.
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
  int64_t deadline_ms = 0;  // of any wait; 0: no limit
};

class CommunicatorState {
 public:
  /// `local_ranks` is in the order of ranks and includes this rank.
  CommunicatorState(const CommunicatorOptions& options, std::vector<LocalRank> local_ranks);
  CommunicatorState(const CommunicatorState&) = delete;

  int rank() const { return options_.rank; }
  int ranks() const { return options_.ranks; }
  const std::vector<LocalRank>& local_ranks() const { return local_ranks_; }
  int me() const { return me_; }  // index among the ranks of this node
  Control& control() const { return *control_; }
  const LocalRank* local_rank(int rank) const;  // null: on another node

  // Called by the thread that executes calls:

  /// Waits until all ranks of this node have mapped each other's segments. False: the deadline
  /// passed.
  bool join(int64_t deadline_ms);
  /// No more data comes from this rank.
  void leave();
  /// Sets the call in progress, which error messages name.
  void enter_call(const CallSignature& call);
  void exit_call();
  /// Outside of a collective: the message that is awaited next. Null: none.
  void await_message(const CollectiveCall* call);
  /// This rank sends and receives no more messages.
  void end();
  /// All ranks have reached the last call: a later failure does not matter.
  void complete();
  /// From now on no rank that is late ends the communicator.
  void wait_without_limit() { deadline_ms_ = 0; }
  /// Waits until `missing` returns -1 instead of a rank. False: the communicator has failed.
  /// Pending messages progress meanwhile.
  template <typename Missing>
  bool wait(Missing missing) {
    for (int i = 0; i < spins_; i++) {
      if (missing() < 0) return true;
      pause();
    }
    return wait_moving(missing);
  }
  /// The same for a wait that needs progress() to be called.
  template <typename Missing>
  bool wait_moving(Missing missing) {
    return wait_long([](void* f) { return (*static_cast<Missing*>(f))(); }, &missing);
  }
  /// Whether another rank of this node has failed: its cause becomes this one's. Any thread.
  bool fail_with_local_rank();
  /// Progresses messages, within waits.
  std::function<void()> progress;
  // For a rank on another node:
  std::function<LastCall(int rank)> remote_last_call;
  std::function<bool(int rank)> remote_has_left;
  std::function<bool(int rank)> remote_has_ended;
  std::function<WaitForEdge(int rank)> remote_wait_edge;
  std::function<void(const WaitForEdge&)> send_wait_edge;  // to those ranks

  // Any thread:

  /// Keeps the first cause and notifies all ranks.
  void fail(const Error& cause);
  /// Fails with the first rank of this node that has failed, or exited before it left.
  void check_for_dead_ranks();
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  Error cause() const;
  void ring_own_doorbell() { ring_doorbell(*control_); }
  /// Wakes a waiting rank. Call it after the data that it waits for is written.
  static void ring_doorbell(Control& control);
  /// Notifies the other nodes. Set before anything can fail.
  std::function<void(const Error&)> on_fail;
  std::function<void()> on_end;
  std::string call_text() const;  // "all_reduce #17", of the call in progress
  /// After a failure: the position at the time of the failure.
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
  std::atomic<uint32_t> message_{0};  // operation and peer; 0: no message is awaited
  std::atomic<bool> has_failed_{false};
  bool is_complete_ = false;  // under mutex_
  mutable std::mutex mutex_;
  Error cause_;
};

}  // namespace flow::collective
