// When an elastic gang restarts with more ranks, and when it does not.
#include <catch2/catch.hpp>

#include "engine/sched/sched.hpp"

using namespace flow;
using namespace flow::core;

namespace {

constexpr Time kAfter = 1000;

/// An elastic gang of 2 to 6 ranks with one CPU each, which occupies the only 2 CPUs.
struct World {
  State state;
  Time now = 0;
  std::vector<Command> commands;

  explicit World(int32_t jobs = 0) {
    feed(EngineStarted{1, 0, 0});
    join("w1", 2);
    submit("r", jobs);
    resolve(0);
    start_what_fits();
  }
  void submit(const RunId& run, int32_t jobs) {
    Plan plan;
    for (const char* name : {"gang", "other", "where", "wide"}) {
      TaskDef def;
      def.name = name;
      def.resources.cpus_milli = 1000;
      TaskNode node;
      node.name = name;
      node.def = uint32_t(plan.defs.size());
      node.args = Value::list({});
      plan.defs.push_back(def);
      plan.nodes.push_back(std::move(node));
    }
    plan.defs[0].resources.ranks = 2;
    plan.defs[0].resources.ranks_max = 6;
    plan.defs[2].resources.where = "nowhere";
    plan.defs[3].resources.cpus_milli = 3000;
    plan.defs[3].priority = 1;
    plan.result = Value(true);
    feed(RunSubmitted{run, "", sha256("plan"), std::make_shared<const Plan>(plan), jobs, false,
                      false});
  }
  void feed(Event event) {
    REQUIRE(admit(state, event));
    apply(state, {state.sequence + 1, now, std::move(event)}, commands);
    REQUIRE(check_invariants(state) == "");
  }
  void join(const std::string& name, int32_t cpus) {
    feed(WorkerJoined{{name, cpus * 1000, 0, {}, {}}});
  }
  void resolve(UnitId unit, const RunId& run = "r") {
    feed(InputsResolved{run, unit, sha256(run + std::to_string(unit)), false, {}, nullptr, {}});
  }
  void start_what_fits() {
    for (Event& event : schedule(state, 1000)) feed(std::move(event));
  }
  /// Number of ranks for a checkpoint at that time; 0: unchanged.
  uint32_t at(Time at) {
    now = at;
    feed(CheckpointSaved{gang(), sha256("state")});
    auto asked = elastic_scale_up(state, gang(), kAfter);
    if (!asked) return 0;
    CHECK(admit(state, *asked));
    return asked->ranks;
  }
  AttemptId gang() const { return current_attempt(state.runs.at("r"), 0); }
};

}  // namespace

TEST_CASE("a gang grows into resources that have been free for as long as it ran") {
  World world;
  world.join("w2", 3);
  CHECK(world.at(kAfter - 1) == 0);
  CHECK(world.at(kAfter) == 5);
  world.join("w3", 3);  // too new to be used
  CHECK(world.at(kAfter) == 5);
  CHECK(world.at(2 * kAfter) == 6);
  World alone;
  CHECK(alone.at(5 * kAfter) == 0);
}

TEST_CASE("resources that are free only briefly, or that other tasks wait for, are not used") {
  World flaps;
  for (Time now = 0; now < 5 * kAfter; now += kAfter / 2) {
    flaps.now = now;
    flaps.feed(now == 0 ? Event(WorkerJoined{{"w2", 3000, 0, {}, {}}})
                        : Event(WorkerDisconnected{2, "cut"}));
    if (now > 0) flaps.join("w2", 3);
    CHECK(flaps.at(now) == 0);
  }
  World leaves;
  leaves.join("w2", 3);
  leaves.feed(WorkerDraining{2, "maintenance"});
  CHECK(leaves.at(2 * kAfter) == 0);
  World waited;
  waited.join("w2", 3);
  waited.resolve(1);
  CHECK(waited.at(2 * kAfter) == 0);
  World unmet;  // no existing worker could run it
  unmet.join("w2", 3);
  unmet.resolve(2);
  CHECK(unmet.at(2 * kAfter) == 5);
}

TEST_CASE("a gang does not grow onto a worker that is set aside") {
  World world;
  world.join("w2", 3);
  world.now = 2 * kAfter;
  world.feed(CheckpointSaved{world.gang(), sha256("state")});
  CHECK(elastic_scale_up(world.state, world.gang(), kAfter)->ranks == 5);
  // The other worker has enough CPUs for the smallest gang, not for a larger one.
  world.state.workers[2].aside_until = 10 * kAfter;
  CHECK_FALSE(elastic_scale_up(world.state, world.gang(), kAfter));
}

TEST_CASE("a gang does not grow if a task of its run would take its slots when it stops") {
  World world(4);
  world.join("w2", 3);
  CHECK(world.at(2 * kAfter) == 4);
  world.resolve(3);  // waits for 3 slots, and begins before the gang
  CHECK(schedule(world.state, 1000).empty());
  CHECK(world.at(2 * kAfter) == 0);
}

TEST_CASE("a gang does not grow into what is reserved for a task that waits for its run's slots") {
  World world;
  world.join("w2", 3);
  world.submit("a", 3);
  world.resolve(1, "a");
  world.start_what_fits();
  CHECK(world.at(2 * kAfter) == 4);
  world.resolve(3, "a");  // waits for the slot of the other task; only w2 has its 3 CPUs
  CHECK(schedule(world.state, 1000).empty());
  CHECK(world.at(2 * kAfter) == 0);
}

TEST_CASE("a gang does not grow beyond its run's slots, and is asked once") {
  World world(4);
  world.join("w2", 3);
  CHECK(world.at(kAfter) == 4);
  world.feed(*elastic_scale_up(world.state, world.gang(), kAfter));
  CHECK(world.at(2 * kAfter) == 0);
  CHECK_FALSE(admit(world.state, ResizeRequested{world.gang(), 4}));
  AttemptId first = world.gang();
  world.feed(AttemptStopped{first});
  world.start_what_fits();
  const Unit& unit = world.state.runs.at("r").units[0];
  CHECK(unit.phase == Phase::running);
  CHECK(unit.detail->others.size() == 3);
  CHECK(unit.detail->grew_from == 2);
  CHECK(unit.detail->failures == 0);
  CHECK_FALSE(elastic_scale_up(world.state, first, kAfter));
  for (uint32_t ranks : {4u, 7u})
    CHECK_FALSE(admit(world.state, ResizeRequested{world.gang(), ranks}));
}
