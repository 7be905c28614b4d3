#include "engine/process/child.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>

#include "engine/base/clock.hpp"
#include "engine/base/open_files.hpp"
#include "engine/process/spawn_setup.hpp"

extern char** environ;

namespace flow {

namespace {

void set_streams(SpawnSetup& setup, const ChildStreams& streams) {
  if (streams.in >= 0) {
    ::posix_spawn_file_actions_adddup2(&setup.files, streams.in, 0);
  } else {
    ::posix_spawn_file_actions_addopen(&setup.files, 0, "/dev/null", O_RDONLY, 0);
  }
  if (streams.log.empty()) {
    ::posix_spawn_file_actions_adddup2(&setup.files, streams.out, 1);
    ::posix_spawn_file_actions_adddup2(&setup.files, streams.err, 2);
  } else {
    ::posix_spawn_file_actions_addopen(&setup.files, 1, streams.log.c_str(),
                                       O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::posix_spawn_file_actions_adddup2(&setup.files, 1, 2);
  }
}

/// The parent's environment, with `variables` replacing those of the same name.
std::vector<char*> environment_with(std::vector<std::string>& variables) {
  std::vector<char*> all;
  for (char** variable = environ; *variable != nullptr; variable++) {
    std::string_view text = *variable;
    std::string_view name = text.substr(0, text.find('=') + 1);
    bool is_replaced = !name.empty() && std::ranges::any_of(variables, [&](const auto& other) {
      return other.starts_with(name);
    });
    if (!is_replaced) all.push_back(*variable);
  }
  for (std::string& variable : variables) all.push_back(variable.data());
  all.push_back(nullptr);
  return all;
}

}  // namespace

Result<std::unique_ptr<Child>> Child::spawn(std::vector<std::string> argv,
                                            const ChildStreams& streams,
                                            std::vector<std::string> variables) {
  SpawnSetup setup;
  set_streams(setup, streams);
  setup.isolate();
  std::vector<char*> words, environment = environment_with(variables);
  for (std::string& word : argv) words.push_back(word.data());
  words.push_back(nullptr);
  auto cannot = [&](const char* what, int why) {
    return environment_error(fmt::format("cannot {} `{}`: {}", what, argv[0], std::strerror(why)));
  };
  std::unique_ptr<Child> child(new Child());
  pid_t pid = 0;
  int failed = ::posix_spawnp(&pid, words[0], &setup.files, &setup.attributes, words.data(),
                              environment.data());
  if (failed != 0) return cannot("start", failed);
  child->pid_ = pid;
  restore_open_files(pid);
  child->began_ms_ = monotonic_us() / 1000;
  child->pidfd_ = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (child->pidfd_ < 0) return cannot("watch", errno);  // otherwise its end could not be noticed
  return child;
}

Child::~Child() {
  if (pid_ != 0) {
    if (!ends_within(0)) kill_group();
    reap();
  }
  if (pidfd_ >= 0) ::close(pidfd_);
}

bool Child::ends_within(int64_t ms) const {
  pollfd ended{pidfd_, POLLIN, 0};
  int64_t until_ms = monotonic_us() / 1000 + ms;
  auto left_ms = [&] { return std::max<int64_t>(0, until_ms - monotonic_us() / 1000); };
  while (::poll(&ended, 1, static_cast<int>(left_ms())) < 0 && errno == EINTR) {
  }
  return ended.revents != 0;
}

void Child::send(int signal) const { ::kill(pid_, signal); }

void Child::kill_group() const { ::kill(-pid_, SIGKILL); }

int Child::reap() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace flow
