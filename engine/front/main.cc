// flow-front: owns the listener of a service, and hands its requests to replicas. flow starts it.
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>

#include "engine/base/files.hpp"
#include "engine/front/front_folder.hpp"
#include "engine/front/front_socket.hpp"

namespace {

using namespace flow;

constexpr auto kDrainTime = std::chrono::seconds(10);  // after SIGTERM
constexpr int kEnded = SIGUSR1;                        // from the loop to the main thread
constexpr int kUsageExit = 2, kEnvironmentExit = 4;

struct Arguments {
  std::string folder;
  int64_t lease_ms = FrontOptions{}.lease_ms;
};

std::optional<Arguments> read_arguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i + 1 < argc; i += 2) {
    std::string_view name = argv[i], value = argv[i + 1];
    if (name == "--folder") {
      arguments.folder = value;
    } else if (name == "--lease") {
      auto [end, error] =
          std::from_chars(value.data(), value.data() + value.size(), arguments.lease_ms);
      if (error != std::errc() || end != value.data() + value.size() || arguments.lease_ms < 0)
        return std::nullopt;
    } else {
      return std::nullopt;
    }
  }
  if (argc % 2 == 0 || arguments.folder.empty()) return std::nullopt;
  return arguments;
}

sigset_t handled_signals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (int signal : {SIGTERM, SIGINT, kEnded}) ::sigaddset(&signals, signal);
  return signals;
}

int fail(FrontLog& log, const Error& error) {
  log.write(error.message);
  return kEnvironmentExit;
}

int serve(const FrontFolder& folder, int64_t lease_ms, FrontLog& log) {
  // Before there are threads, which inherit it.
  sigset_t signals = handled_signals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // a limit of file sizes, which holds for shared memory too
  auto write = [&log](const std::string& line) { log.write(line); };
  EventLoop loop("flow-http", write);
  auto front = Front::start(
      loop, {.port_file = folder.path_of(FrontFolder::kPort),
             .grpc_port_file = folder.path_of(FrontFolder::kGrpcPort),
             .traffic_file = folder.path_of(FrontFolder::kTraffic),
             .access_log = std::filesystem::absolute(folder.path_of(FrontFolder::kAccessLog)),
             .lease_ms = lease_ms,
             .log = write,
             .ended = [main = ::pthread_self()] { ::pthread_kill(main, kEnded); }});
  if (!front.ok()) return fail(log, front.error());
  FrontSocket socket(**front, loop, write, folder.path_of(FrontFolder::kGate));
  Status written =
      write_file_atomic(folder.path_of(FrontFolder::kPid), fmt::format("{}\n", ::getpid()));
  Status listening =
      written.ok() ? socket.listen(folder.descriptor(), FrontFolder::kSocket) : written;
  if (listening.ok()) {
    log.write(fmt::format("the front begins (process {})", ::getpid()));
    for (int signal = 0; signal != kEnded;) {
      if (::sigwait(&signals, &signal) != 0 || signal == kEnded) continue;
      log.write(fmt::format("the front is stopped by {}", ::strsignal(signal)));
      loop.post([&front] { (*front)->begin_drain(kDrainTime); });
    }
    log.write("the front ends");
    folder.clear();
  }
  loop.stop();
  return listening.ok() ? 0 : fail(log, listening.error());
}

}  // namespace

int main(int argc, char** argv) {
  auto arguments = read_arguments(argc, argv);
  if (!arguments) {
    std::fprintf(stderr,
                 "flow-front is started by flow, never by hand: use `flow run`\n"
                 "usage: flow-front --folder FOLDER [--lease MILLISECONDS]\n");
    return kUsageExit;
  }
  auto folder = FrontFolder::open(arguments->folder);
  if (!folder.ok()) {
    std::fprintf(stderr, "%s\n", folder.error().message.c_str());
    return kEnvironmentExit;
  }
  if (*folder == nullptr) {
    std::printf("another front serves in %s\n", arguments->folder.c_str());
    return 0;
  }
  FrontLog log((*folder)->descriptor(), FrontFolder::kLog);
  return serve(**folder, arguments->lease_ms, log);
}
