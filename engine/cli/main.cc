// The `flow` command.
#include <fcntl.h>
#include <unistd.h>

#include "engine/cli/display/signals.hpp"
#include "engine/cli/verbs/verbs.hpp"
#include "flow/process.hpp"

extern "C" {
/// Read by jemalloc when the process starts: freed pages return to the system after a second. By
/// default they stay for ten, and a large run takes more memory in each of its phases. Memory that
/// one arena has freed is not used by another, and by default there are four for each CPU.
const char* malloc_conf = "dirty_decay_ms:1000,narenas:4";
}

namespace {

/// If a standard stream is closed, the next opened file would get its descriptor, and output would
/// go to that file.
void open_missing_streams() {
  // Writing to a closed output must still fail and be reported, so /dev/null is opened read-only.
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
