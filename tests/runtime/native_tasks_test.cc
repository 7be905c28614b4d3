// Native tasks, run by threads of this process.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <condition_variable>
#include <future>
#include <mutex>

#include "engine/value/cbor.hpp"
#include "engine/worker/native_tasks.hpp"

using namespace flow;

namespace {

/// Ends of attempts, as they are reported.
class Ends {
 public:
  void add(std::vector<Report> reports) {
    std::lock_guard lock(mutex_);
    for (Report& report : reports)
      if (report.is<TaskFinished>()) ends_.push_back(std::move(report));
    came_.notify_all();
  }
  std::vector<Report> wait(size_t count) {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [&] { return ends_.size() >= count; });
    return ends_;
  }
  std::vector<Report> all() {
    std::lock_guard lock(mutex_);
    return ends_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<Report> ends_;
};

AttemptOrder order_of(uint32_t unit) {
  AttemptOrder order;
  order.id = {"r", unit, 1, 1};
  order.task = "t";
  order.args = encode_value(Value::list({Value(int64_t{unit})}));
  return order;
}

}  // namespace

TEST_CASE("native tasks run on at most as many threads as there are slots, and all of them run") {
  int32_t threads = GENERATE(0, 1, 3);  // 0: a head without slots
  Ends ends;
  NativeRunner runner(threads, [&](std::vector<Report> reports) { ends.add(std::move(reports)); });
  std::atomic<int> running{0}, most{0};
  runner.define("t", "1", [&](TaskContext&, const Value& args) {
    int now = ++running;
    for (int before = most; before < now && !most.compare_exchange_weak(before, now);) {
    }
    running--;
    return args;
  });
  constexpr uint32_t kTasks = 50;
  for (uint32_t unit = 0; unit < kTasks; unit++) runner.start(order_of(unit), "t");
  for (const Report& end : ends.wait(kTasks)) {
    CHECK(end.as<TaskFinished>()->outcome == TaskFinished::Outcome::succeeded);
    CHECK(end.as<TaskFinished>()->value == order_of(end.id.unit).args);
  }
  if (threads > 0) CHECK(most <= threads);
}

TEST_CASE("when a runner ends, the running task is asked to stop and waiting ones do not begin") {
  Ends ends;
  std::promise<void> entered;
  std::atomic<int> begun{0};
  {
    NativeRunner runner(1, [&](std::vector<Report> reports) { ends.add(std::move(reports)); });
    runner.define("t", "1", [&](TaskContext& context, const Value&) {
      if (begun++ == 0) entered.set_value();
      while (!context.stopping()) std::this_thread::yield();
      return Value();
    });
    runner.start(order_of(0), "t");
    runner.start(order_of(1), "t");
    entered.get_future().wait();
  }
  CHECK(begun == 1);
  REQUIRE(ends.all().size() == 1);
  CHECK(ends.all()[0].as<TaskFinished>()->outcome == TaskFinished::Outcome::stopped);
}

// In a child process, as a user that has no other: root may have any number of threads.
TEST_CASE("a native task fails with an error if no thread can be started for it") {
  pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    constexpr uid_t kUnused = 54'322;
    if (::geteuid() == 0 && ::setuid(kUnused) != 0) ::_exit(3);
    rlimit one{1, 1};
    if (::setrlimit(RLIMIT_NPROC, &one) != 0) ::_exit(4);
    Ends ends;
    NativeRunner runner(1, [&](std::vector<Report> reports) { ends.add(std::move(reports)); });
    runner.define("t", "1", [](TaskContext&, const Value& args) { return args; });
    runner.start(order_of(0), "t");
    auto all = ends.all();
    bool says_so = all.size() == 1 &&
                   all[0].as<TaskFinished>()->outcome == TaskFinished::Outcome::failed &&
                   all[0].as<TaskFinished>()->failure.message.starts_with("cannot start a thread");
    ::_exit(says_so ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
