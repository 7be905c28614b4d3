// Threads for what takes time, and what runs on them in its order.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <string>
#include <thread>

#include "engine/cluster/transfer/thread_pool.hpp"

namespace flow::cluster {
namespace {

TEST_CASE("a strand runs its jobs in their order, one at a time, whoever posts them") {
  constexpr int kJobs = 2'000;
  std::vector<int> ran;  // guarded by nothing but the strand
  {
    ThreadPool thread_pool(4);
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

TEST_CASE("a strand that never ends keeps no other job from a thread") {
  std::atomic<bool> is_over{false};
  std::atomic<int> turns{0}, others{0};
  std::shared_ptr<Strand> endless;
  std::function<void()> again = [&] {
    turns++;
    if (!is_over) endless->post(again);
  };
  ThreadPool thread_pool(2);  // which ends first: until then one may run
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
    while (turns == before) std::this_thread::yield();  // nor do the others keep it
  }
  CHECK(others == 200);
  is_over = true;
}

// Both threads are needed at once: the one that a job's end wakes, and its own.
TEST_CASE("two strands run beside each other") {
  ThreadPool thread_pool(2);
  auto one = std::make_shared<Strand>(thread_pool), other = std::make_shared<Strand>(thread_pool);
  for (int i = 0; i < 500; i++) {
    std::promise<void> met, answered;
    std::string steps;  // guarded by the promises alone
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

// Whoever hears of a job may end what it was posted to, while post() has not returned.
TEST_CASE("jobs may end while a post of one that has run returns") {
  std::atomic<int> count{0};
  for (int i = 0; i < 500; i++) {
    auto thread_pool = std::make_unique<ThreadPool>(1);
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

TEST_CASE("without threads jobs wait until they are run, those that they post too") {
  ThreadPool thread_pool(0);
  int count = 0;
  thread_pool.post([&] { thread_pool.post([&] { count++; }); });
  auto strand = std::make_shared<Strand>(thread_pool);
  for (int i = 0; i < 2; i++) strand->post([&] { count += 10; });
  CHECK(count == 0);
  thread_pool.run_waiting();
  CHECK(count == 21);
}

TEST_CASE("a job's thread takes the processor from none that computes") {
  ThreadPool thread_pool(1);
  std::promise<int> policy;
  thread_pool.post([&] { policy.set_value(::sched_getscheduler(0)); });
  CHECK(policy.get_future().get() == SCHED_BATCH);
}

}  // namespace
}  // namespace flow::cluster
