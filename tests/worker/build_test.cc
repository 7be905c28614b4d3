// The process that builds a graph: its output, and the error of each limit.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/worker/worker.hpp"
#include "flow/value.hpp"

using namespace flow;

namespace {

class Folder {
 public:
  Folder() { REQUIRE(mkdtemp(path.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path = std::filesystem::temp_directory_path() / "flow-build-XXXXXX";
};

Result<BuildReply> build(const std::string& script, BuildOrder order = {}) {
  Folder folder;
  std::ofstream(folder.path + "/p.lua") << script;
  order.root = order.working_directory = folder.path;
  order.main = "p.lua";
  order.params = encode_value(Value::map({}));
  return Builder(getenv("FLOW_TEST_EXECUTOR")).build(order);
}

std::string error_of(const std::string& script, const BuildOrder& order = {}) {
  auto reply = build(script, order);
  if (!reply.ok()) {
    CHECK(reply.error().kind == ErrorKind::user);  // exit code 2
    return reply.error().message;
  }
  return reply->errors.empty() ? "built" : reply->errors[0];
}

/// Child processes of this process.
std::vector<pid_t> children() {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    pid_t pid = static_cast<pid_t>(std::atoi(entry.path().filename().c_str()));
    std::ifstream stat(entry.path() / "stat");
    std::string name, state;
    pid_t parent = 0;
    if (pid > 0 && stat >> name >> name >> state >> parent && parent == ::getpid())
      found.push_back(pid);
  }
  return found;
}

const std::string kPipeline = "return require('flow').pipeline('p', {}, function() end)";

}  // namespace

TEST_CASE("a build returns a plan, a bundle, and the output of the script") {
  auto reply = build("print('top') io.write('no newline')\n" + kPipeline);
  REQUIRE(reply.ok());
  CHECK(reply->errors.empty());
  CHECK_FALSE(reply->plan.empty());
  CHECK_FALSE(reply->bundle.empty());
  CHECK_THAT(reply->printed, Catch::StartsWith("top\nno newline"));
}

TEST_CASE("a script that never ends is stopped at its time limit") {
  BuildOrder order;
  order.time_limit_ms = 1000;
  CHECK_THAT(error_of("while true do end", order),
             Catch::Contains("/p.lua: the script did not finish loading within"));
  CHECK_THAT(error_of("pcall(function() while true do end end)", order),
             Catch::Contains("/p.lua: the script did not finish loading within"));
}

TEST_CASE("a script that prints endlessly is stopped at its output limit") {
  CHECK_THAT(error_of("while true do print(('x'):rep(1000)) end"),
             Catch::Contains("/p.lua: the script printed more than 1024 KiB while its graph was "
                             "built: print in a task"));
  CHECK(error_of("for _ = 1, 500 do print(('x'):rep(1000)) end " + kPipeline) == "built");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // no memory limit there
TEST_CASE("a script that allocates endlessly gets an out-of-memory error") {
  BuildOrder order;
  order.memory_limit_bytes = int64_t{512} << 20;
  CHECK_THAT(error_of("local t = {}\nwhile true do t[#t + 1] = ('x'):rep(1 << 20) end", order),
             Catch::StartsWith("p.lua: the script needs more memory than its graph's process may "
                               "use (512 MiB)"));
}
#endif

TEST_CASE(
    "infinite recursion, and nesting beyond the parser's limit, are errors with their lines") {
  CHECK_THAT(error_of("\nlocal function f() return 1 + f() end\nf()"),
             Catch::StartsWith("p.lua:2: stack overflow"));
  CHECK_THAT(error_of("return " + std::string(300, '(') + "1" + std::string(300, ')')),
             Catch::StartsWith("p.lua: C stack overflow: it nests too deep"));
}

TEST_CASE("a graph with too many nodes is rejected at the first excess call") {
  BuildOrder order;
  order.time_limit_ms = 600'000;  // a sanitizer on a busy machine needs long for four million calls
  CHECK_THAT(error_of("local flow = require('flow')\nlocal t = flow.task('t', function() end)\n"
                      "return flow.pipeline('p', {}, function()\n"
                      "  for i = 1, 5000000 do t(i) end\nend)",
                      order),
             Catch::StartsWith("p.lua:4: the graph has more than 4000000 nodes: use flow.map"));
}

TEST_CASE("a process that was started in advance builds one graph, and is replaced if it died") {
  Folder folder;
  std::ofstream(folder.path + "/p.lua") << kPipeline;
  BuildOrder order;
  order.root = order.working_directory = folder.path;
  order.main = "p.lua";
  order.params = encode_value(Value::map({}));
  Builder builder(getenv("FLOW_TEST_EXECUTOR"));
  CHECK(children().empty());
  builder.prefork();
  std::vector<pid_t> ahead = children();
  REQUIRE(ahead.size() == 1);
  REQUIRE(builder.build(order).ok());
  builder.wait_idle();
  CHECK(children().empty());  // this process, and no other
  REQUIRE(builder.build(order).ok());
  builder.wait_idle();
  std::vector<pid_t> next = children();
  REQUIRE(next.size() == 1);  // the next build starts one more
  REQUIRE(::kill(next.front(), SIGKILL) == 0);
  siginfo_t ended{};
  ::waitid(P_PID, static_cast<id_t>(next.front()), &ended, WEXITED | WNOWAIT);
  CHECK(builder.build(order).ok());
}

TEST_CASE("a host program without standard streams builds a graph") {
  Folder folder;
  std::ofstream(folder.path + "/p.lua") << "print('said')\n" + kPipeline;
  BuildOrder order;
  order.root = order.working_directory = folder.path;
  order.main = "p.lua";
  order.params = encode_value(Value::map({}));
  int streams[3];
  for (int stream : {0, 1, 2}) {
    streams[stream] = ::fcntl(stream, F_DUPFD_CLOEXEC, 10);
    ::close(stream);
  }
  auto reply = Builder(getenv("FLOW_TEST_EXECUTOR")).build(order);
  for (int stream : {0, 1, 2}) {
    ::dup2(streams[stream], stream);
    ::close(streams[stream]);
  }
  REQUIRE(reply.ok());
  CHECK(reply->errors.empty());
  CHECK(reply->printed == "said\n");
}

TEST_CASE(
    "a build that was killed from outside did not reach a limit and is not the script's fault") {
  for (int signal : {SIGKILL, SIGTERM}) {
    std::atomic<bool> over = false;  // also if no process could be started
    std::thread killer([&] {
      while (!over) {
        for (pid_t pid : children()) ::kill(pid, signal);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
    auto reply = build("while true do end");
    over = true;
    killer.join();
    REQUIRE_FALSE(reply.ok());
    CHECK(reply.error().kind == ErrorKind::environment);  // exit code 4
    CHECK_THAT(reply.error().message,
               Catch::Contains("/p.lua: the process that builds the graph was killed from outside "
                               "by signal " +
                               std::to_string(signal)));
    CHECK_THAT(reply.error().message, !Catch::Contains("did not finish loading"));
  }
}
