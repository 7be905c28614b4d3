// Long chains and large groups of equal keys end without deep recursion, and the cost of an event
// does not depend on the number of unrelated tasks.
#include <catch2/catch.hpp>
#include <string>

#include "engine/core/core.hpp"
#include "engine/sched/sched.hpp"

using namespace flow;
using namespace flow::core;

namespace {

constexpr size_t kMany = 200'000;

class Engine {
 public:
  Engine() { feed(EngineStarted{1, 1000, 0}); }
  void feed(Event event) {
    bool admitted = admit(state, event);
    REQUIRE(admitted);
    out.clear();
    apply(state, {state.sequence + 1, 0, std::move(event)}, out);
  }
  void submit(std::shared_ptr<const Plan> plan, bool fail_fast = false) {
    RunSubmitted e;
    e.run = "r";
    e.plan = std::move(plan);
    e.fail_fast = fail_fast;
    feed(e);
    std::vector<Command> asked = out;
    for (const Command& command : asked) {
      const auto* q = std::get_if<ResolveInputs>(&command);
      for (uint32_t i = 0; q && i < q->count; i++)
        feed(InputsResolved{q->run, q->unit + i, sha256("the same"), false, {}, nullptr, {}});
    }
  }
  /// The number of units whose inputs the last event asked for.
  size_t asked() const {
    size_t units = 0;
    for (const Command& command : out) {
      if (const auto* query = std::get_if<ResolveInputs>(&command)) units += query->count;
    }
    return units;
  }
  AttemptId start() {
    Event event = schedule(state, 1).at(0);
    feed(event);
    return std::get<Assigned>(event).id;
  }
  const Run& run() const { return state.runs.at("r"); }
  State state;
  std::vector<Command> out;
};

std::shared_ptr<Plan> calls(bool chained) {
  auto plan = std::make_shared<Plan>();
  plan->defs.resize(1);
  plan->defs[0].name = "t";
  for (uint32_t i = 0; i < kMany; i++) {
    TaskNode node;
    node.name = "t" + std::to_string(i);
    if (chained && i > 0) node.args = Value::list({Value(Ref{i - 1, {}})});
    plan->nodes.push_back(std::move(node));
  }
  return plan;
}

}  // namespace

TEST_CASE("a failure at the head of a long chain skips the whole chain") {
  Engine engine;
  engine.submit(calls(true));
  engine.feed(AttemptFailed{engine.start(), {Cause::user_error, "no", "", 0}});
  CHECK(engine.run().counts.skipped == kMany - 1);
  CHECK(engine.run().gathering);
}

TEST_CASE("one result serves many units with the same key") {
  Engine engine;
  engine.submit(calls(false));
  engine.feed(AttemptSucceeded{engine.start(), sha256("v"), nullptr, {}, 1});
  CHECK(engine.run().counts.succeeded == kMany);
  CHECK(engine.run().counts.cached == kMany - 1);
}

TEST_CASE("many units that wait for one key stop, resume and are cancelled") {
  Engine engine;
  engine.submit(calls(false));
  engine.feed(StopRequested{"r"});
  CHECK(engine.run().status == RunStatus::interrupted);
  CHECK(engine.run().phase_count(Phase::parked) == kMany);
  engine.feed(RetryRequested{"r", false, 0});
  CHECK(engine.asked() == kMany);
  engine.feed(CancelRequested{"r"});
  CHECK(engine.run().counts.cancelled == kMany);
}

TEST_CASE("many units that wait for one key end with the first failure of a fail-fast run") {
  Engine engine;
  engine.submit(calls(false), true);
  engine.feed(AttemptFailed{engine.start(), {Cause::user_error, "no", "", 0}});
  CHECK(engine.run().counts.failed == 1);
  CHECK(engine.run().counts.cancelled == kMany - 1);
}

TEST_CASE("one command asks for the inputs of many units that follow each other") {
  Engine engine;
  RunSubmitted submitted;
  submitted.run = "r";
  submitted.plan = calls(false);
  engine.feed(submitted);
  CHECK(engine.asked() == kMany);
  CHECK(engine.out.size() < 5);
}
