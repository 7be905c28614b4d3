// srun as a child: a step of an allocation that is there.
#pragma once
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/cluster/slurm/request.hpp"
#include "flow/result.hpp"

namespace flow {

/// A worker on each node of the job that this process is in.
slurm::Command step_command(const slurm::Place& place, const std::string& job);

class SlurmStep {
 public:
  /// What it prints goes to `log`.
  static Result<std::unique_ptr<SlurmStep>> start(std::vector<std::string> command,
                                                  const std::string& log);
  ~SlurmStep();  // ends its standard input, and after a while the step
  SlurmStep(const SlurmStep&) = delete;
  SlurmStep& operator=(const SlurmStep&) = delete;
  bool is_over();
  int64_t began_ms() const { return began_ms_; }

 private:
  SlurmStep() = default;
  bool ends_within(int64_t ms);

  pid_t pid_ = 0;
  int pidfd_ = -1, stdin_ = -1;
  int64_t began_ms_ = 0;
};

}  // namespace flow
