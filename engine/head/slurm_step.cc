#include "engine/head/slurm_step.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

namespace flow {

namespace {

constexpr int64_t kWorkersEndMs = 8'000, kStepEndsMs = 5'000;

}  // namespace

slurm::CommandLine step_command(const slurm::WorkerLaunch& launch, const std::string& job) {
  const char* nodes = std::getenv("SLURM_JOB_NUM_NODES");
  return slurm::srun_command(launch, job, nodes == nullptr ? "" : nodes);
}

Result<std::unique_ptr<SlurmStep>> SlurmStep::start(std::vector<std::string> command,
                                                    const std::string& log) {
  std::unique_ptr<SlurmStep> step(new SlurmStep());
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return environment_error(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  step->stdin_ = ends[1];
  auto child = Child::spawn(std::move(command), {ends[0], -1, -1, log});
  ::close(ends[0]);
  FLOW_TRY(child);
  step->child_ = std::move(*child);
  return step;
}

SlurmStep::~SlurmStep() {
  if (stdin_ >= 0) ::close(stdin_);
  if (!child_ || child_->ends_within(kWorkersEndMs)) return;
  child_->send(SIGTERM);
  child_->ends_within(kStepEndsMs);
}

}  // namespace flow
