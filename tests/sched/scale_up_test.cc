// The number of additional workers on which ready units would begin.
#include <catch2/catch.hpp>

#include "engine/sched/sched.hpp"

using namespace flow;
using namespace flow::core;

namespace {

struct TaskRequest {
  int32_t cpus = 1, gpus = 0;
  int64_t memory = 0;
  uint32_t ranks = 1;
};

struct World {
  State state;
  std::vector<Command> commands;

  World() { feed(EngineStarted{1, 0, 0}); }
  void feed(Event event) {
    REQUIRE(admit(state, event));
    apply(state, {state.sequence + 1, 1000, std::move(event)}, commands);
  }
  void submit(const std::vector<TaskRequest>& tasks, int32_t jobs = 0) {
    Plan plan;
    for (const TaskRequest& asked : tasks) {
      TaskDef def;
      def.name = "t";
      def.resources.cpus_milli = asked.cpus * 1000;
      def.resources.gpus_milli = asked.gpus * 1000;
      def.resources.memory_bytes = asked.memory;
      def.resources.ranks = asked.ranks;
      TaskNode node;
      node.name = "n" + std::to_string(plan.nodes.size());
      node.def = uint32_t(plan.defs.size());
      node.args = Value::list({});
      plan.defs.push_back(def);
      plan.nodes.push_back(std::move(node));
    }
    plan.result = Value(true);
    feed(RunSubmitted{"r", "", sha256("plan"), std::make_shared<const Plan>(plan), jobs, false,
                      false});
    for (uint32_t unit = 0; unit < tasks.size(); unit++)
      feed(InputsResolved{"r", unit, sha256(std::to_string(unit)), false, {}, nullptr, {}});
  }
  void start_what_fits() {
    for (Event& event : schedule(state, 1000)) feed(std::move(event));
  }
  uint32_t demand(const WorkerInfo& like, uint32_t most = 100) const {
    return scale_up_demand(state, like, most);
  }
};

WorkerInfo worker(const std::string& name, int32_t cpus, int32_t gpus = 0, int64_t memory = 100) {
  WorkerInfo info{name, cpus * 1000, memory, {}, {}};
  for (int32_t i = 0; i < gpus; i++)
    info.gpus.push_back({uint32_t(i), "GPU-" + std::to_string(i), "A", "", 80, -1, false});
  return info;
}

}  // namespace

TEST_CASE("the number of wanted workers follows the ready work, within the limit") {
  World world;
  CHECK(world.demand(worker("like", 4)) == 0);
  world.submit(std::vector<TaskRequest>(10, TaskRequest{2}));
  CHECK(world.demand(worker("like", 4)) == 5);
  CHECK(world.demand(worker("like", 4), 3) == 3);
  CHECK(world.demand(worker("like", 1)) == 10);  // clamped to the capacity of such a worker
  CHECK(world.demand(worker("like", 64)) == 1);
  CHECK(world.demand(WorkerInfo{}) == 1);  // the capacity is not known yet
  CHECK(world.demand(WorkerInfo{}, 0) == 0);
  world.feed(WorkerJoined{worker("w1", 4)});
  world.start_what_fits();
  CHECK(world.demand(worker("like", 4)) == 4);
}

TEST_CASE("the slots of a run limit the number of workers") {
  World world;
  world.feed(WorkerJoined{worker("w1", 4)});
  world.submit(std::vector<TaskRequest>(10, TaskRequest{1}), 4);
  world.start_what_fits();
  CHECK(world.demand(worker("like", 4)) == 0);
}

TEST_CASE("work that such a worker could not run does not count") {
  World world;
  world.submit({{1, 2}, {1, 1}});
  CHECK(world.demand(worker("like", 4)) == 0);
  CHECK(world.demand(worker("like", 4, 1)) == 1);
  CHECK(world.demand(worker("like", 4, 2)) == 2);
  CHECK(world.demand(worker("like", 4, 4)) == 1);
  World other;
  other.feed(WorkerJoined{worker("w1", 1, 0, 1000)});
  other.submit({{1, 0, 1000}, {1, 0, 500}});
  other.start_what_fits();
  CHECK(other.demand(worker("like", 1, 0, 400)) == 0);
  CHECK(other.demand(worker("like", 1, 0, 500)) == 1);
}

TEST_CASE("a gang wants all workers that its ranks lack, or none") {
  World world;
  world.feed(WorkerJoined{worker("w1", 2, 1)});
  world.submit({{2, 1, 0, 4}});
  world.start_what_fits();
  CHECK(world.demand(worker("like", 2, 1)) == 3);
  CHECK(world.demand(worker("like", 2, 1), 2) == 0);
  CHECK(world.demand(worker("like", 8, 8)) == 1);
}
