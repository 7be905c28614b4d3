#include "engine/driver/slurm_step.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "engine/base/clock.hpp"
#include "engine/driver/spawn_setup.hpp"

extern char** environ;

namespace flow {

namespace {

constexpr int64_t kWorkersEndMs = 8'000, kStepEndsMs = 5'000;

}  // namespace

slurm::Command step_command(const slurm::Place& place, const std::string& job) {
  const char* nodes = std::getenv("SLURM_JOB_NUM_NODES");
  return slurm::srun_command(place, job, nodes == nullptr ? "" : nodes);
}

Result<std::unique_ptr<SlurmStep>> SlurmStep::start(std::vector<std::string> command,
                                                    const std::string& log) {
  std::unique_ptr<SlurmStep> step(new SlurmStep());
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return environment_error(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  step->stdin_ = ends[1];
  SpawnSetup setup;
  ::posix_spawn_file_actions_adddup2(&setup.files, ends[0], 0);
  ::posix_spawn_file_actions_addopen(&setup.files, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                     0600);
  ::posix_spawn_file_actions_adddup2(&setup.files, 1, 2);
  setup.set_apart();
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  int failed =
      ::posix_spawnp(&step->pid_, argv[0], &setup.files, &setup.attributes, argv.data(), environ);
  ::close(ends[0]);
  if (failed != 0) {
    step->pid_ = 0;
    return environment_error(
        fmt::format("cannot start `{}`: {}", command[0], std::strerror(failed)));
  }
  step->pidfd_ = static_cast<int>(::syscall(SYS_pidfd_open, step->pid_, 0));
  step->began_ms_ = now_ms();
  return step;
}

SlurmStep::~SlurmStep() {
  if (stdin_ >= 0) ::close(stdin_);
  if (pid_ != 0) {
    bool is_over = ends_within(kWorkersEndMs);
    for (int number : {SIGTERM, SIGKILL}) {
      if (is_over) break;
      ::kill(pid_, number);
      is_over = ends_within(kStepEndsMs);
    }
    siginfo_t how{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &how, WEXITED);
  }
  if (pidfd_ >= 0) ::close(pidfd_);
}

bool SlurmStep::ends_within(int64_t ms) {
  pollfd ended{pidfd_, POLLIN, 0};
  int64_t until_ms = monotonic_us() / 1000 + ms;
  auto left_ms = [&] { return std::max<int64_t>(0, until_ms - monotonic_us() / 1000); };
  while (::poll(&ended, 1, static_cast<int>(left_ms())) < 0 && errno == EINTR) {
  }
  return ended.revents != 0;
}

bool SlurmStep::is_over() { return ends_within(0); }

}  // namespace flow
