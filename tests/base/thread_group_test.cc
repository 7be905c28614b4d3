// Threads of a long-lived object.
#include "engine/base/thread_group.hpp"

#include <catch2/catch.hpp>
#include <condition_variable>

using namespace flow;

TEST_CASE("threads that have ended are joined when others start") {
  std::mutex mutex;
  std::condition_variable changed;
  bool may_end = false;
  int ended = 0;
  ThreadGroup group;
  group.start([&] {  // outlives the others
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return may_end; });
  });
  size_t most = 0;
  for (int i = 1; i <= 200; i++) {
    group.start([&] {
      std::lock_guard lock(mutex);
      ended++;
      changed.notify_all();
    });
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return ended == i; });
    lock.unlock();
    most = std::max(most, group.size());
  }
  CHECK(most < 20);  // some have reported their end but not yet ended
  {
    std::lock_guard lock(mutex);
    may_end = true;
  }
  changed.notify_all();
  group.join();
  CHECK(group.size() == 0);
}
