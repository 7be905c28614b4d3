// What the reasons of all units of a run cost, in units, edges and classes that are looked at.
#include "engine/sched/wait_explainer.hpp"

#include <catch2/catch.hpp>
#include <string>

#include "tests/sched/shared_reasons.hpp"

using namespace flow;
using namespace flow::core;

namespace {

/// On a machine with 4 CPUs: a run of this many independent tasks, of which 4 run, and of as many
/// that each need one of them. The independent ones are of so many classes, by their memory.
State waiting_state(size_t tasks, size_t classes) {
  State state;
  std::vector<Command> out;
  auto feed = [&](Event event) {
    REQUIRE(admit(state, event));
    apply(state, {state.sequence + 1, 0, std::move(event)}, out);
  };
  feed(EngineStarted{1, 4000, int64_t{1} << 40});
  Plan plan;
  for (size_t i = 0; i < classes; i++) {
    TaskDef& def = plan.defs.emplace_back();
    def.name = "t";
    def.resources.cpus_milli = 1000;
    def.resources.memory_bytes = int64_t(i + 1) << 20;
  }
  for (size_t i = 0; i < 2 * tasks; i++) {
    TaskNode& node = plan.nodes.emplace_back();
    node.name = "n" + std::to_string(i);
    node.def = uint32_t(i % classes);
    node.args = Value::list({i < tasks ? Value(int64_t(i)) : Value(Ref{uint32_t(i - tasks), {}})});
  }
  RunSubmitted submitted;
  submitted.run = "r";
  submitted.plan = std::make_shared<const Plan>(std::move(plan));
  feed(submitted);
  for (UnitId unit = 0; unit < tasks; unit++)
    feed(InputsResolved{"r", unit, sha256(std::to_string(unit)), false, {}, nullptr, {}});
  for (const Event& event : schedule(state, tasks)) feed(event);
  return state;
}

/// Of all units of the run, by one explainer.
size_t examined_for_all(const State& state) {
  WaitExplainer waits(state, "r");
  for (UnitId unit = 0; unit < state.runs.at("r").units.size(); unit++) waits.explain(unit);
  return waits.examined();
}

}  // namespace

TEST_CASE("the reasons of all units cost a few looks at each unit, however many classes wait") {
  for (size_t classes : {size_t{1}, size_t{100}, size_t{2000}}) {
    for (size_t tasks : {size_t{4000}, size_t{8000}}) {
      INFO(tasks << " tasks of " << classes << " classes");
      State state = waiting_state(tasks, classes);
      CHECK(state.runs.at("r").ready.size() == classes);
      size_t units = state.runs.at("r").units.size();
      CHECK(examined_for_all(state) <= 3 * units);
    }
  }
}

TEST_CASE("a reason alone looks at all units: an explainer is made once for all") {
  State state = waiting_state(500, 1);
  WaitExplainer waits(state, "r");
  waits.explain(499);
  CHECK(waits.examined() >= 500);
  size_t before = waits.examined();
  for (UnitId unit = 4; unit < 499; unit++) waits.explain(unit);
  CHECK(waits.examined() == before);
}

TEST_CASE("ready units of one class share their reason, and the others have their own") {
  State state = waiting_state(6, 1);
  WaitExplainer waits(state, "r");
  const char* reason =
      "it asks for 1 CPU; 0 CPUs are free, the rest is held by `n0`, `n1`, `n2` and 1 more";
  REQUIRE(waits.class_of(4) != nullptr);
  CHECK(waits.class_of(4) == waits.class_of(5));
  CHECK(waits.class_of(0) == nullptr);
  CHECK(waits.class_of(6) == nullptr);
  CHECK(waits.explain_class(*waits.class_of(4)) == reason);
  CHECK(waits.explain(5) == reason);
  CHECK(waits.explain(0) == "it runs");
  CHECK(waits.explain(7) == "it waits for `n1`");
  CHECK(waits.explain(12) == "the run r has no such task");
  CHECK(WaitExplainer(state, "s").explain(0) == "the run s is not active");
  check_shared_reasons(state);
}
