// One NCCL communicator, and the thread that watches what is under way on it.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "transports/nccl/calls.hpp"
#include "transports/nccl/nccl.hpp"

namespace flow::nccl {

using Clock = std::chrono::steady_clock;

/// A call on the GPU. Finished once, by the communicator.
class NcclWork final : public CollectiveWork {
 public:
  bool is_done() const override;
  Status wait() override;
  void finish(Status status);

 private:
  mutable std::mutex mutex_;
  std::condition_variable done_;
  bool is_done_ = false;
  Status status_;
};

class NcclCommunicator final : public Communicator {
 public:
  /// `handle` is up.
  NcclCommunicator(const NcclOptions& options, Handle handle);
  ~NcclCommunicator() override;

  int rank() const override { return options_.rank; }
  int ranks() const override { return options_.ranks; }
  Status run(const CollectiveCall& call) override { return start(call)->wait(); }
  std::shared_ptr<CollectiveWork> start(const CollectiveCall& call) override;
  Status state() const override;
  void abort(const std::string& reason) override;
  std::string description() const override;
  /// Of the ranks that are left; this one fails.
  Result<std::unique_ptr<Communicator>> shrink(const std::vector<int>& without);

 private:
  struct PendingCall {
    std::shared_ptr<NcclWork> work;
    void* mark = nullptr;
    std::string text;  // "all_reduce(sum) of 1000 f32 (#17)"
    Clock::time_point until;
  };

  // All under mutex_:
  Status check_call(const CollectiveCall& call) const;
  Status queue(const CollectiveCall& call, const std::string& text);
  Code call_nccl(const CollectiveCall& call);
  Code exchange_all(const CollectiveCall& call, int type);
  Status await_queued(Code code, const std::string& text);
  void fail(const Error& cause);
  void fail_gang(const Error& cause);
  void check_in_flight();
  void check_cpu_communicator();
  bool is_ending() const;  // of any thread

  void watch();

  const NcclOptions options_;
  const Calls& calls_;

  std::mutex abort_mutex_;
  Error aborted_;                         // set once, before:
  std::atomic<bool> is_aborting_{false};  // whoever waits under mutex_ stops

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  Handle handle_ = nullptr;  // null: aborted
  Status state_;             // its failure
  uint64_t number_ = 0;
  std::deque<PendingCall> in_flight_;
  bool stopping_ = false;
  Clock::time_point cpu_checked_at_;
  std::thread watcher_;
};

/// Asks until it is no longer in progress; kInProgress at the deadline, or where `stops`.
Code await_result(const Calls& calls, Handle handle, Clock::time_point until,
                  const std::function<bool()>& stops = {});
Error nccl_error(const Calls& calls, int rank, Code code, const std::string& what);

}  // namespace flow::nccl
