// Slurm nodes for this head: requests allocations, reports their states, and releases them.
#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/cluster/slurm/allocation_pool.hpp"
#include "engine/cluster/slurm/request.hpp"
#include "engine/head/slurm_step.hpp"

namespace flow {

/// Callbacks to the head, on the autoscaler's thread.
struct AutoscalerCallbacks {
  std::function<slurm::ClusterView()> view;
  std::function<void(const std::string& node)> drain;  // assign nothing new there
  std::function<void(const std::string& text)> note;   // for users
  std::function<void(const std::string& text)> status;
  std::function<void()> on_no_more_nodes;           // no further node will be allocated
  std::function<void(const Error& why)> on_failed;  // no node is left, and none will be allocated
};

class SlurmAutoscaler {
 public:
  /// `inside`: the job whose nodes are used; "": request allocations.
  static Result<std::unique_ptr<SlurmAutoscaler>> start(const SlurmOptions& options,
                                                        const slurm::WorkerLaunch& launch,
                                                        const std::string& inside,
                                                        AutoscalerCallbacks user);
  ~SlurmAutoscaler();  // releases the nodes

 private:
  SlurmAutoscaler(const SlurmOptions& options, slurm::WorkerLaunch launch, std::string inside,
                  AutoscalerCallbacks user);
  void adopt_jobs();
  /// Keeps the workers of the allocation of this process running.
  void keep_step();
  void loop();
  void turn();
  void poll_jobs();
  void request_nodes(int32_t nodes);
  /// Cancels jobs. Returns false, with a note, if one of them may still exist.
  bool cancel(const std::vector<uint64_t>& jobs, int64_t within_ms);
  void release_allocations(const std::vector<uint64_t>& jobs, int64_t within_ms);
  void report();
  void write_log();
  std::string step_text(const std::string& why) const;  // for the log
  std::string job_file(uint64_t job) const;

  const SlurmOptions options_;
  const slurm::WorkerLaunch launch_;
  const std::string inside_;
  const AutoscalerCallbacks user_;
  slurm::AllocationPool pool_;
  std::unique_ptr<SlurmStep> step_;
  uint32_t steps_ended_ = 0;  // consecutive, each soon after it began
  int64_t step_at_ms_ = 0;
  int64_t poll_at_ms_ = 0, changed_at_ms_ = 0;
  std::string squeue_problem_, reported_status_;
  bool has_failed_ = false, has_reported_final_ = false;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool quit_ = false;
  std::thread thread_;
};

}  // namespace flow
