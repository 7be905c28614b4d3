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
class ProcessEnd {
 public:
  ProcessEnd() = default;
  explicit ProcessEnd(int pid);
  ProcessEnd(ProcessEnd&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  ProcessEnd& operator=(ProcessEnd&& other) noexcept;
  ~ProcessEnd();
  bool has_come() const;

 private:
  int descriptor_ = -1;
};

/// A rank on this node.
struct Member {
  int rank = 0;
  int pid = 0;
  ProcessEnd end;
  Segment segment;
};

struct CoreOptions {
  int rank = 0, ranks = 1;
  int64_t deadline_ms = 0;  // of any wait; 0: none
};

class Core {
 public:
  /// `members` by rank, this one among them.
  Core(const CoreOptions& options, std::vector<Member> members);
  Core(const Core&) = delete;

  int rank() const { return options_.rank; }
  int ranks() const { return options_.ranks; }
  const std::vector<Member>& members() const { return members_; }
  int me() const { return me_; }  // among the members
  Control& control() const { return *control_; }
  const Member* member(int rank) const;  // null: on another node

  // Of whoever runs a call:

  /// The others of this node have mapped what this one shares, and so has this one theirs.
  bool join(int64_t deadline_ms);
  /// Nothing comes from this rank any more.
  void part();
  /// The call that is under way, for what is told of it.
  void enter(const Signature& call);
  void leave();
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
  std::function<void()> pump;
  // Of a rank on another node:
  std::function<Record(int rank)> record_of_other;
  std::function<bool(int rank)> other_has_left;
  std::function<bool(int rank)> other_has_ended;
  std::function<Waits(int rank)> waits_of_other;
  std::function<void(const Waits&)> tell_waits;  // to those

  // Of any thread:

  /// The first cause stays, and is told to all.
  void fail(const Error& cause);
  /// Ranks of this node that have failed, or died before they left: the first of them is the cause.
  void look_for_dead();
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  Error cause() const;
  void ring_own() { ring(*control_); }
  /// Wakes who sleeps. After what it waits for was written.
  static void ring(Control& control);
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
  void look(int (*missing)(void*), void* context, int64_t waited_us);
  void look_at_time(int missing_rank, int64_t waited_us);
  void wait_no_more();
  bool has_left(int rank) const;
  Waits waits_of(int rank) const;
  bool waits_itself(int rank) const;
  std::string circle_text(const Waits& own) const;
  std::vector<int> waiting() const;
  void publish(const Error& cause);
  Record record_of(int rank) const;

  const CoreOptions options_;
  int64_t deadline_ms_ = 0;
  std::vector<Member> members_;
  int me_ = 0, spins_ = 0;
  Control* control_ = nullptr;
  bool has_told_waits_ = false;
  std::atomic<uint64_t> entered_{0};  // a Record
  std::atomic<uint32_t> message_{0};  // what and with whom; 0: none is waited for
  std::atomic<bool> has_failed_{false};
  bool is_complete_ = false;  // under mutex_
  mutable std::mutex mutex_;
  Error cause_;
};

}  // namespace flow::collective
