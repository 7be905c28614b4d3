// Thread pools: order within a strand, the bound of the queue, destruction.
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/thread_pool.hpp"

namespace flow {
namespace {

ThreadPoolOptions threads(size_t count) {
  return {.name = "test", .threads_max = count, .queue_max = 10'000};
}

TEST_CASE("a strand runs its jobs in order and one at a time, whichever thread posts them") {
  constexpr int kJobs = 2'000;
  std::vector<int> ran;  // guarded only by the strand
  {
    ThreadPool thread_pool(threads(4));
    auto strand = std::make_shared<Strand>(thread_pool),
         other = std::make_shared<Strand>(thread_pool);
    for (int i = 0; i < kJobs; i++) {
      strand->post([&ran, i] { ran.push_back(i); });
      other->post([] {});
    }
  }
  REQUIRE(ran.size() == kJobs);
  CHECK(std::is_sorted(ran.begin(), ran.end()));
}

TEST_CASE("a strand that never ends does not keep other jobs from running") {
  std::atomic<bool> is_over{false};
  std::atomic<int> turns{0}, others{0};
  std::shared_ptr<Strand> endless;
  std::function<void()> again = [&] {
    turns++;
    if (!is_over) endless->post(again);
  };
  ThreadPool thread_pool(threads(2));  // destroyed first; until then one job may run
  endless = std::make_shared<Strand>(thread_pool);
  endless->post(again);
  for (int i = 0; i < 100; i++) {
    std::promise<void> first, second;
    auto count = [&](std::promise<void>& done) {
      others++;
      done.set_value();
    };
    int before = turns;
    thread_pool.post([&] { count(first); });
    std::make_shared<Strand>(thread_pool)->post([&] { count(second); });
    first.get_future().wait();
    second.get_future().wait();
    while (turns == before) std::this_thread::yield();  // and the others do not block it
  }
  CHECK(others == 200);
  is_over = true;
}

// Both threads are needed at once: the one that the end of a job wakes, and the strand's own.
TEST_CASE("two strands run concurrently") {
  ThreadPool thread_pool(threads(2));
  auto one = std::make_shared<Strand>(thread_pool), other = std::make_shared<Strand>(thread_pool);
  for (int i = 0; i < 500; i++) {
    std::promise<void> met, answered;
    std::string steps;  // guarded only by the promises
    one->post([&] { met.set_value(); });
    one->post([&] {
      answered.get_future().wait();
      steps += " waited";
    });
    other->post([&] {
      met.get_future().wait();
      steps += "answered";
      answered.set_value();
    });
    std::promise<void> all;
    one->post([&] { all.set_value(); });
    all.get_future().wait();
    CHECK(steps == "answered waited");
  }
}

// The receiver of a job's result may destroy the strand before post() returns.
TEST_CASE("jobs may end while the post that queued them has not returned") {
  std::atomic<int> count{0};
  for (int i = 0; i < 500; i++) {
    auto thread_pool = std::make_unique<ThreadPool>(threads(1));
    std::promise<void> ran;
    std::thread posts([&] {
      thread_pool->post([&] {
        count++;
        ran.set_value();
      });
    });
    ran.get_future().wait();
    thread_pool.reset();
    posts.join();
    CHECK(count == i + 1);
  }
}

TEST_CASE("without threads jobs wait until they are run, including those that they post") {
  ThreadPool thread_pool(threads(0));
  int count = 0;
  thread_pool.post([&] { thread_pool.post([&] { count++; }); });
  auto strand = std::make_shared<Strand>(thread_pool);
  for (int i = 0; i < 2; i++) strand->post([&] { count += 10; });
  CHECK(count == 0);
  thread_pool.run_waiting();
  CHECK(count == 21);
}

TEST_CASE("a full queue rejects a job and leaves it unchanged") {
  std::promise<void> entered, go_on;
  std::atomic<int> count{0};
  {
    ThreadPool thread_pool({.name = "test", .threads_max = 1, .queue_max = 2});
    ThreadPool::Job waits = [&] {
      entered.set_value();
      go_on.get_future().wait();
    };
    REQUIRE(thread_pool.try_post(waits));
    entered.get_future().wait();  // it has left the queue
    ThreadPool::Job counts = [&] { count++; }, again = counts, third = counts;
    CHECK(thread_pool.try_post(counts));
    CHECK(thread_pool.excess_jobs() == 1);
    CHECK(thread_pool.try_post(again));
    CHECK_FALSE(thread_pool.try_post(third));
    CHECK(thread_pool.excess_jobs() == 2);
    REQUIRE(third);
    third();
    go_on.set_value();
  }
  CHECK(count == 3);
}

TEST_CASE("a full queue takes jobs of work that was admitted before") {
  ThreadPool thread_pool({.name = "test", .threads_max = 0, .queue_max = 1});
  std::string ran;
  auto strand = std::make_shared<Strand>(thread_pool),
       other = std::make_shared<Strand>(thread_pool);
  CHECK(strand->try_post([&] { ran += "a"; }));
  CHECK(strand->try_post([&] { ran += "b"; }));  // its job is in the queue already
  CHECK_FALSE(other->try_post([&] { ran += "rejected"; }));
  thread_pool.post([&] { ran += "c"; });
  other->post([&] { ran += "d"; });
  thread_pool.run_waiting();
  CHECK(ran == "acdb");
  CHECK(other->try_post([&] { ran += "e"; }));
  thread_pool.run_waiting();
  CHECK(ran == "acdbe");
}

// In a child process, as a user that has no other: root may have any number of threads.
TEST_CASE("a pool that cannot start its first thread says so when it is made") {
  pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    constexpr uid_t kUnused = 54'321;
    if (::geteuid() == 0 && ::setuid(kUnused) != 0) ::_exit(3);
    rlimit one{1, 1};
    if (::setrlimit(RLIMIT_NPROC, &one) != 0) ::_exit(4);
    auto started = ThreadPool::start({.name = "test"});
    bool says_so = !started.ok() && started.error().kind == ErrorKind::environment &&
                   started.error().message.starts_with("cannot start a thread: ");
    ::_exit(says_so ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("a pool starts a thread only if none is idle, up to its maximum") {
  std::array<std::promise<void>, 3> entered;
  std::promise<void> go_on;
  std::shared_future<void> gone_on = go_on.get_future().share();
  ThreadPool thread_pool({.name = "test", .threads_max = 3, .queue_max = 10});
  for (std::promise<void>& each : entered) {
    CHECK(thread_pool.excess_jobs() == 0);
    thread_pool.post([&each, gone_on] {
      each.set_value();
      gone_on.wait();
    });
    each.get_future().wait();
  }
  thread_pool.post([] {});
  CHECK(thread_pool.excess_jobs() == 1);
  go_on.set_value();
}

TEST_CASE("the threads of a pool have its name") {
  ThreadPool thread_pool({.name = "flow-name-of-15", .threads_max = 1, .queue_max = 1});
  std::promise<std::string> name;
  thread_pool.post([&] {
    char text[16] = {};
    ::pthread_getname_np(::pthread_self(), text, sizeof text);
    name.set_value(text);
  });
  CHECK(name.get_future().get() == "flow-name-of-15");
}

TEST_CASE("the destructor runs jobs that are posted meanwhile") {
  std::atomic<int> count{0};
  {
    ThreadPool thread_pool(threads(2));
    for (int i = 0; i < 100; i++)
      thread_pool.post([&] { thread_pool.post([&] { thread_pool.post([&] { count++; }); }); });
  }
  CHECK(count == 100);
}

TEST_CASE("threads of a batch pool do not preempt computing threads") {
  ThreadPool thread_pool({.name = "test", .threads_max = 1, .queue_max = 1, .is_batch = true});
  std::promise<int> policy;
  thread_pool.post([&] { policy.set_value(::sched_getscheduler(0)); });
  CHECK(policy.get_future().get() == SCHED_BATCH);
}

}  // namespace
}  // namespace flow
