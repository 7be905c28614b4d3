// Programs that are run for their output, and how they end.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>

#include "engine/process/child.hpp"
#include "engine/process/run_command.hpp"

using namespace flow;

namespace {

constexpr int64_t kPatienceMs = 60'000;

Result<CommandResult> run_shell(const std::string& command, int64_t within_ms = kPatienceMs) {
  return run_command({"sh", "-c", command}, within_ms);
}

bool has_no_child() { return ::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD; }

}  // namespace

TEST_CASE("a command returns its output and its exit code") {
  auto answer = run_shell("cat; echo told; echo wrong >&2; exit 3");
  REQUIRE(answer.ok());
  CHECK(answer->code == 3);
  CHECK(answer->out == "told\n");
  CHECK(answer->err == "wrong\n");
  answer = run_shell("kill -9 $$");
  REQUIRE(answer.ok());
  CHECK(answer->code == 128 + SIGKILL);
  CHECK_THAT(run_command({"no such program"}, kPatienceMs).error().message,
             Catch::Contains("cannot start `no such program`"));
  CHECK(has_no_child());
}

TEST_CASE("a command that closes its output is awaited, within the same time limit") {
  auto answer = run_shell("exec >&- 2>&-; sleep 0.2; exit 5");
  REQUIRE(answer.ok());
  CHECK(answer->code == 5);
  auto late = run_shell("exec >&- 2>&-; exec sleep 1000", 1'000);
  REQUIRE(!late.ok());
  CHECK(late.error().message == "`sh` did not answer within 1 s");
  CHECK(has_no_child());
}

TEST_CASE("child processes of a command that exceeds its time are ended with it") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  auto child = Child::spawn({"sh", "-c", "sleep 1000 & echo; wait"}, {-1, ends[1], ends[1]});
  REQUIRE(child.ok());
  ::close(ends[1]);
  char byte = 0;
  REQUIRE(::read(ends[0], &byte, 1) == 1);  // both are there
  child->reset();
  CHECK(::read(ends[0], &byte, 1) == 0);  // no process can write any more
  ::close(ends[0]);
  CHECK(has_no_child());
}

TEST_CASE("variables of a child replace those of its parent") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  ::setenv("FLOW_TEST_CHILD", "parent's", 1);
  auto child =
      Child::spawn({"sh", "-c", "echo \"$FLOW_TEST_CHILD$FLOW_TEST_CHILD_TOO\""},
                   {-1, ends[1], ends[1]}, {"FLOW_TEST_CHILD=own", "FLOW_TEST_CHILD_TOO=new"});
  REQUIRE(child.ok());
  CHECK((*child)->reap() == 0);
  char text[32] = {};
  CHECK(::read(ends[0], text, sizeof text) == 7);
  CHECK(std::string(text) == "ownnew\n");
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("a child that cannot be watched is an error and is killed") {
  int free = ::dup(0);
  ::close(free);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(free);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  auto child = Child::spawn({"sleep", "1000"}, {0, 1, 2});
  ::setrlimit(RLIMIT_NOFILE, &before);
  REQUIRE(!child.ok());
  CHECK(child.error().message == "cannot watch `sleep`: Too many open files");
  CHECK(has_no_child());
}
