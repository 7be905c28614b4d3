// How many replicas a service has, from samples of its load.
#include "engine/worker/replica_controller.hpp"

#include <catch2/catch.hpp>
#include <string>

namespace flow {
namespace {

constexpr int64_t kTargetUs = 5000, kHighUs = kTargetUs + 1;

ReplicaLimits limits_of_test() { return {1, 4, kTargetUs, 5000, 60'000}; }

/// A front that is asked once per second.
class Load {
 public:
  explicit Load(const ReplicaLimits& limits, uint32_t wanted) : controller(limits, wanted) {}

  /// The numbers that the controller asks for in so many seconds, "2@5 3@10" with the second of
  /// each. Replicas are ready at once.
  std::string run(int64_t seconds, int64_t queue_us, uint64_t rejected = 0) {
    std::string text;
    for (int64_t i = 0; i < seconds; i++)
      if (auto replicas = controller.decide(
              {1000 * second++, queue_us, rejected, missing > 0 ? 0 : controller.wanted()}))
        text += (text.empty() ? "" : " ") + std::to_string(*replicas) + "@" +
                std::to_string(second - 1);
    return text;
  }

  ReplicaController controller;
  int64_t second = 0;
  uint32_t missing = 0;  // above 0: not all replicas are ready
};

TEST_CASE("a service grows by one for each time above its target, up to its max") {
  Load load(limits_of_test(), 1);
  CHECK(load.run(30, kHighUs) == "2@5 3@10 4@15");
  CHECK(load.controller.wanted() == 4);
}

TEST_CASE("a service shrinks by one for each time at or below its target, down to its min") {
  Load load(limits_of_test(), 3);
  CHECK(load.run(300, kTargetUs) == "2@60 1@120");
}

TEST_CASE("the time above or below the target begins again with each change") {
  Load load(limits_of_test(), 2);
  CHECK(load.run(5, kHighUs).empty());
  CHECK(load.run(1, 0).empty());
  CHECK(load.run(5, kHighUs).empty());
  CHECK(load.run(60, 0).empty());
  CHECK(load.run(1, kHighUs).empty());
  CHECK(load.run(61, 0) == "1@132");
}

TEST_CASE("rejected requests are a high load however short the queue is") {
  Load load(limits_of_test(), 1);
  CHECK(load.run(6, 0, 1) == "2@5");
}

TEST_CASE("a service does not grow before all its replicas are ready") {
  Load load(limits_of_test(), 1);
  CHECK(load.run(6, kHighUs) == "2@5");
  load.missing = 1;
  CHECK(load.run(60, kHighUs).empty());
  load.missing = 0;
  CHECK(load.run(6, kHighUs) == "3@70");
}

TEST_CASE("a service shrinks also while one of its replicas is not ready") {
  Load load(limits_of_test(), 2);
  load.missing = 1;
  CHECK(load.run(61, 0) == "1@60");
}

TEST_CASE("a service that may not shrink does so as soon as it may") {
  Load load(limits_of_test(), 2);
  load.controller.set_may_shrink(false);
  CHECK(load.run(100, 0).empty());
  load.controller.set_may_shrink(true);
  CHECK(load.run(1, 0) == "1@100");
}

TEST_CASE("a front that was not asked for a while says nothing about that time") {
  Load load(limits_of_test(), 1);
  CHECK(load.run(4, kHighUs).empty());
  load.second += 11;
  CHECK(load.run(5, kHighUs).empty());
  CHECK(load.run(1, kHighUs) == "2@20");
}

TEST_CASE("a number that something else has set is where the next step begins") {
  Load load(limits_of_test(), 1);
  load.controller.set_wanted(3);
  CHECK(load.run(6, kHighUs) == "4@5");
}

}  // namespace
}  // namespace flow
