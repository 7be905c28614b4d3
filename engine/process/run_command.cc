#include "engine/process/run_command.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/base/clock.hpp"
#include "engine/process/child.hpp"

namespace flow {

namespace {

constexpr size_t kOutputMax = 4u << 20;  // maximum output that is kept

/// Both ends of a pipe, closed by the destructor.
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

/// Returns false at the end of the output.
bool take_output(int descriptor, std::string& text) {
  char chunk[16 * 1024];
  ssize_t got = ::read(descriptor, chunk, sizeof chunk);
  if (got < 0) return errno == EINTR;
  if (text.size() < kOutputMax) text.append(chunk, static_cast<size_t>(got));
  return got > 0;
}

}  // namespace

Result<CommandResult> run_command(
    const std::vector<std::string>& argv, int64_t within_ms,
    const std::vector<std::pair<std::string, std::string>>& variables) {
  std::vector<std::string> replaced;
  for (const auto& [name, value] : variables) replaced.push_back(name + "=" + value);
  Pipe out, err;
  FLOW_TRY(out.open());
  FLOW_TRY(err.open());
  auto child = Child::spawn(argv, {-1, out.write, err.write}, std::move(replaced));
  FLOW_TRY(child);
  Pipe::close(out.write);
  Pipe::close(err.write);
  CommandResult result;
  int64_t until_ms = monotonic_us() / 1000 + within_ms;
  auto left_ms = [&] { return std::max<int64_t>(0, until_ms - monotonic_us() / 1000); };
  while ((out.read >= 0 || err.read >= 0) && left_ms() > 0) {
    pollfd watched[] = {{out.read, POLLIN, 0}, {err.read, POLLIN, 0}};
    if (::poll(watched, 2, static_cast<int>(left_ms())) <= 0) continue;
    if (watched[0].revents != 0 && !take_output(out.read, result.out)) Pipe::close(out.read);
    if (watched[1].revents != 0 && !take_output(err.read, result.err)) Pipe::close(err.read);
  }
  // A program may close its output and continue to run.
  bool is_late = out.read >= 0 || err.read >= 0 || !(*child)->ends_within(left_ms());
  if (is_late) {
    (*child)->kill_group();
    return environment_error(
        fmt::format("`{}` did not answer within {} s", argv[0], within_ms / 1000));
  }
  result.code = (*child)->reap();
  return result;
}

}  // namespace flow
