// Divides the traffic of a served name between two versions, at the fronts of its services, and
// makes the number of replicas follow the load.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/types.hpp"
#include "engine/worker/replica_scaler.hpp"
#include "flow/result.hpp"

namespace flow {

/// A step of a run's rollover, for the fronts of its services: weights to set, or counts to read.
struct FrontOrder {
  core::ShiftTraffic traffic;
  bool measures = false;             // reads counts; the fronts should have the weights `traffic`
  std::vector<std::string> folders;  // of the fronts
  uint32_t requests_min = 0;         // of a measured step; warm-up requests complete them
  bool limits_errors = false;        // then more refused requests than these are enough, too
};

/// The engine's way to the fronts.
class FrontControl {
 public:
  virtual ~FrontControl() = default;
  /// Does not block. Answered by TrafficShifted or TrafficMeasured, unless a later order of the run
  /// replaces it.
  virtual void give(FrontOrder order) = 0;
  /// Does not block. The services of the run whose replicas scale, if it serves, instead of those
  /// before. Where their number shall change, a core::ReplicasScaled is posted.
  virtual void watch(const core::RunId&, std::vector<ScaledService>) {}
  /// The run has ended: the fronts in these folders do not wait for its replicas any more. Does not
  /// block, and has no answer.
  virtual void forget(const core::RunId&, std::vector<std::string>) {}
  /// No answer is posted after it.
  virtual void quit() {}
};

/// Carries out orders one after the other, on a thread that the first one starts. Another thread
/// watches the load.
class ServiceFronts final : public FrontControl {
 public:
  using Post = std::function<void(core::Event)>;
  /// A front that does not answer is asked again for `retry_time`: one that died is back by then.
  explicit ServiceFronts(Post post, std::chrono::milliseconds retry_time = std::chrono::seconds(10))
      : post_(std::move(post)), retry_time_(retry_time), scaler_(post_) {}
  ~ServiceFronts() override { quit(); }

  void give(FrontOrder order) override;
  void watch(const core::RunId& run, std::vector<ScaledService> services) override {
    scaler_.watch(run, std::move(services));
  }
  void forget(const core::RunId& run, std::vector<std::string> folders) override;
  /// Orders that wait are dropped, but fronts still get to know which runs have ended.
  void quit() override;

 private:
  struct EndedRun {
    core::RunId id;
    std::vector<std::string> folders;
  };

  void carry_out_orders();
  void start_thread();
  core::Event answer_of(const FrontOrder& order);
  Status try_some_times(const std::function<Status()>& attempt);

  const Post post_;
  const std::chrono::milliseconds retry_time_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<FrontOrder> orders_;
  std::deque<EndedRun> ended_;  // that the fronts do not know yet
  bool has_quit_ = false;
  std::thread thread_;
  ReplicaScaler scaler_;
};

/// Tells the front in this folder the weights of both versions. Blocks.
Status shift_traffic(const std::string& folder, const core::ShiftTraffic& traffic);
/// Tells the front in this folder that the run has ended. A front that does not answer has ended
/// too. Blocks.
void forget_version(const std::string& folder, const core::RunId& run);
/// What a front counted in a step.
struct StepCounts {
  uint64_t requests = 0, errors = 0;  // of accepted requests
  uint64_t refused = 0;               // others
  int64_t p50_us = 0, p99_us = 0;
};
/// What the front in this folder counted. A front with other weights is a new one: it gets
/// `traffic` and counts from now on. If fewer than `requests_min` requests were accepted, the front
/// sends warm-up requests, which the next measure counts.
Result<StepCounts> measure_traffic(const std::string& folder, const core::ShiftTraffic& traffic,
                                   uint32_t requests_min);

}  // namespace flow
