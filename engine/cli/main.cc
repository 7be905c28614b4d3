// The `flow` command.
#include <fcntl.h>
#include <unistd.h>

#include "engine/cli/display/signals.hpp"
#include "engine/cli/verbs/verbs.hpp"
#include "flow/process.hpp"

namespace {

/// Where a standard stream is closed, the next file opened would get its number, and what is
/// printed would go into that file.
void open_missing_streams() {
  // What is printed to a closed output fails, and is told, as ever: /dev/null is not to be written.
  for (auto [stream, mode] : {std::pair(STDIN_FILENO, O_RDONLY), std::pair(STDOUT_FILENO, O_RDONLY),
                              std::pair(STDERR_FILENO, O_WRONLY)}) {
    if (fcntl(stream, F_GETFD) < 0 && open("/dev/null", mode) != stream)
      _exit(flow::cli::kUnreachable);
  }
}

}  // namespace

int main(int argc, char** argv) {
  flow::cli::hold_signals();
  open_missing_streams();
  flow::end_on_uncaught(flow::cli::kUnreachable);
  flow::raise_open_files();
  return flow::call_with_stack([&] { return flow::cli::flow_main(argc, argv); });
}
