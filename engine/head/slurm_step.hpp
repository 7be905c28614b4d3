// srun as a child process: a step in an existing allocation.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/cluster/slurm/request.hpp"
#include "engine/process/child.hpp"
#include "flow/result.hpp"

namespace flow {

/// Command that starts a worker on each node of this process's job.
slurm::CommandLine step_command(const slurm::WorkerLaunch& launch, const std::string& job);

class SlurmStep {
 public:
  /// Its output is appended to `log`.
  static Result<std::unique_ptr<SlurmStep>> start(std::vector<std::string> command,
                                                  const std::string& log);
  ~SlurmStep();  // closes its standard input, and kills the step after a while
  SlurmStep(const SlurmStep&) = delete;
  SlurmStep& operator=(const SlurmStep&) = delete;
  bool is_over() const { return child_->ends_within(0); }
  int64_t began_ms() const { return child_->began_ms(); }  // by monotonic_us()

 private:
  SlurmStep() = default;
  std::unique_ptr<Child> child_;
  int stdin_ = -1;
};

}  // namespace flow
