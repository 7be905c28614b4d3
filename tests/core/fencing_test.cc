// The attempt of a report stays unambiguous for the lifetime of a unit.
#include <catch2/catch.hpp>

#include "engine/core/core.hpp"

using namespace flow;
using namespace flow::core;

namespace {

class Engine {
 public:
  Engine() {
    feed(EngineStarted{1, 1000, 0});
    auto plan = std::make_shared<Plan>();
    plan->defs.resize(1);
    plan->defs[0].name = "t";
    plan->nodes.resize(1);
    plan->nodes[0].name = "t";
    RunSubmitted submitted;
    submitted.run = "r";
    submitted.plan = std::move(plan);
    feed(submitted);
    InputsResolved resolved;
    resolved.run = "r";
    resolved.key = sha256("key");
    feed(resolved);
  }
  bool admits(const Event& event) const { return admit(state, event); }
  void feed(Event event) {
    REQUIRE(admits(event));
    std::vector<Command> out;
    apply(state, {state.sequence + 1, 0, std::move(event)}, out);
  }
  AttemptId next() const { return next_attempt(state, state.runs.at("r"), 0); }
  AttemptId assign() {
    AttemptId id = next();
    Assigned assigned;
    assigned.id = id;
    feed(assigned);
    return id;
  }
  State state;
};

AttemptSucceeded success(const AttemptId& id) {
  AttemptSucceeded succeeded;
  succeeded.id = id;
  succeeded.result = sha256("result");
  return succeeded;
}

}  // namespace

TEST_CASE("an attempt's id is never reused, however often the attempt is requeued") {
  Engine engine;
  const AttemptId first = engine.assign();
  engine.feed(AttemptRequeued{first});
  AttemptId last = first;
  bool are_later = true;
  for (int n = 0; n < 140'000; n++) {
    AttemptId id = engine.assign();
    auto order = [](const AttemptId& of) { return std::pair(of.attempt, of.epoch); };
    are_later = are_later && order(last) < order(id);
    last = id;
    engine.feed(AttemptRequeued{id});
  }
  CHECK(are_later);
  CHECK(last.attempt == 3);  // 65,536 ids per number
  const AttemptId current = engine.assign();
  CHECK_FALSE(engine.admits(success(first)));
  CHECK_FALSE(engine.admits(success(last)));
  engine.feed(success(current));
  CHECK(engine.state.runs.at("r").units[0].status == UnitStatus::succeeded);
}
