#include "engine/page/state_thread.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <future>

using namespace flow;

TEST_CASE("jobs without end do not keep the poll from its turns") {
  EngineOptions options;
  options.state = (std::filesystem::temp_directory_path() / "flow-page-no-state").string();
  std::atomic<int> polls = 0;
  std::promise<void> done;
  // Without turns for the poll the jobs would go on for ever.
  auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  StateThread thread(options);
  std::function<void(const StateFollower&)> job = [&](const StateFollower&) {
    if (polls >= 3 || std::chrono::steady_clock::now() > limit) return done.set_value();
    thread.post(job, [&](const Error&) { done.set_value(); });
  };
  thread.poll([] { return true; }, [&](const StateFollower&) { polls++; });
  REQUIRE(thread.post(job, [&](const Error&) { done.set_value(); }));
  done.get_future().wait();
  CHECK(polls >= 3);
}
