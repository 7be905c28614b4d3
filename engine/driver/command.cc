#include "engine/driver/command.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "engine/base/clock.hpp"
#include "engine/driver/spawn_setup.hpp"

extern char** environ;

namespace flow {

namespace {

constexpr size_t kAnswerMax = 4u << 20;  // of what is kept

/// Both ends of a pipe, closed whatever happens.
struct Pipe {
  int read = -1, write = -1;
  Status open() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      return environment_error(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
    read = ends[0];
    write = ends[1];
    return {};
  }
  ~Pipe() {
    close(read);
    close(write);
  }
  static void close(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
};

/// False when nothing more comes.
bool take_output(int descriptor, std::string& text) {
  char chunk[16 * 1024];
  ssize_t got = ::read(descriptor, chunk, sizeof chunk);
  if (got < 0) return errno == EINTR;
  if (text.size() < kAnswerMax) text.append(chunk, static_cast<size_t>(got));
  return got > 0;
}

Result<pid_t> spawn_command(std::vector<std::string> words, const Pipe& out, const Pipe& err) {
  SpawnSetup setup;
  ::posix_spawn_file_actions_addopen(&setup.files, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&setup.files, out.write, 1);
  ::posix_spawn_file_actions_adddup2(&setup.files, err.write, 2);
  setup.set_apart();
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  int failed = ::posix_spawnp(&pid, argv[0], &setup.files, &setup.attributes, argv.data(), environ);
  if (failed == 0) return pid;
  return environment_error(fmt::format("cannot start `{}`: {}", words[0], std::strerror(failed)));
}

}  // namespace

Result<Answer> run_command(const std::vector<std::string>& argv, int64_t within_ms) {
  Pipe out, err;
  FLOW_TRY(out.open());
  FLOW_TRY(err.open());
  auto pid = spawn_command(argv, out, err);
  FLOW_TRY(pid);
  Pipe::close(out.write);
  Pipe::close(err.write);
  Answer answer;
  int64_t until_ms = monotonic_us() / 1000 + within_ms, left_ms = within_ms;
  for (; (out.read >= 0 || err.read >= 0) && left_ms > 0;
       left_ms = until_ms - monotonic_us() / 1000) {
    pollfd watched[] = {{out.read, POLLIN, 0}, {err.read, POLLIN, 0}};
    if (::poll(watched, 2, static_cast<int>(left_ms)) <= 0) continue;
    if (watched[0].revents != 0 && !take_output(out.read, answer.out)) Pipe::close(out.read);
    if (watched[1].revents != 0 && !take_output(err.read, answer.err)) Pipe::close(err.read);
  }
  bool is_late = out.read >= 0 || err.read >= 0;
  if (is_late) ::kill(-*pid, SIGKILL);
  int status = 0;
  while (::waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (is_late)
    return environment_error(
        fmt::format("`{}` did not answer within {} s", argv[0], within_ms / 1000));
  answer.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return answer;
}

}  // namespace flow
