// One NCCL communicator, and the thread that watches its calls in flight.
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
  /// `handle` is initialized.
  NcclCommunicator(const NcclOptions& options, NcclHandle handle);
  ~NcclCommunicator() override;

  int rank() const override { return options_.rank; }
  int ranks() const override { return options_.ranks; }
  Status run(const CollectiveCall& call) override { return start(call)->wait(); }
  std::shared_ptr<CollectiveWork> start(const CollectiveCall& call) override;
  /// One group of NCCL: one launch, and one thread of it, for all calls.
  std::vector<std::shared_ptr<CollectiveWork>> start_all(
      const std::vector<CollectiveCall>& calls) override;
  Status state() const override;
  void abort(const std::string& reason) override;
  std::string description() const override;
  /// A communicator of the remaining ranks; this one fails.
  Result<std::unique_ptr<Communicator>> shrink(const std::vector<int>& without);

 private:
  /// The calls of one launch.
  struct PendingLaunch {
    std::vector<std::shared_ptr<NcclWork>> works;
    void* mark = nullptr;
    std::string text;  // of the first: "all_reduce(sum) of 1000 f32 (#17)"
    Clock::time_point until;
  };

  // With mutex_ held:
  Status check_call(const CollectiveCall& call) const;
  Status queue(const std::vector<const CollectiveCall*>& calls, const std::string& text);
  Code call_nccl(const CollectiveCall& call);
  Code call_group(const std::vector<const CollectiveCall*>& calls);
  Code exchange_all(const CollectiveCall& call, int type);
  Status await_queued(Code code, const std::string& text);
  void fail(const Error& cause);
  void fail_gang(const Error& cause);
  void check_in_flight();
  void check_cpu_communicator();
  bool is_ending() const;  // any thread

  void watch();

  const NcclOptions options_;
  const NcclCalls& calls_;

  std::mutex abort_mutex_;
  Error aborted_;                         // set once, before is_aborting_:
  std::atomic<bool> is_aborting_{false};  // waits with mutex_ held end

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  NcclHandle handle_ = nullptr;  // null: aborted
  Status state_;                 // its failure
  uint64_t number_ = 0;
  std::deque<PendingLaunch> in_flight_;
  bool stopping_ = false;
  Clock::time_point cpu_checked_at_;
  std::thread watcher_;
};

/// How a thread waits for NCCL, which launches each call in a thread of its own, mostly within tens
/// of microseconds: it spins at first, and then sleeps, each time twice as long.
constexpr int kSpins = 300;  // of about a microsecond each
constexpr std::chrono::microseconds kSleepMin{50}, kSleepMax{2000};
/// The sleep after the spins, counted from 0.
std::chrono::microseconds sleep_of(int number);

/// Of this process, for measurements.
struct NcclWaits {
  std::atomic<uint64_t> spins{0}, sleeps{0};
};
NcclWaits& nccl_waits();

/// Polls until it is no longer in progress; kInProgress at the deadline, or when `stops` returns
/// true.
Code await_result(const NcclCalls& calls, NcclHandle handle, Clock::time_point until,
                  const std::function<bool()>& stops = {});
Error nccl_error(const NcclCalls& calls, int rank, Code code, const std::string& what);

}  // namespace flow::nccl
