// Budgets: what the scheduler starts, when a run is warned and stopped, and what a restart finds.
#include <catch2/catch.hpp>

#include "engine/core/budget.hpp"
#include "engine/core/core.hpp"
#include "engine/sched/sched.hpp"

using namespace flow;
using namespace flow::core;

namespace {

constexpr int64_t kDollar = kNano;

/// An engine with 4 CPUs. A CPU costs 1 USD per second.
class BudgetEngine {
 public:
  /// `timeouts_ms`: one task for each.
  explicit BudgetEngine(int64_t limit_usd, std::vector<int64_t> timeouts_ms) {
    feed(1, EngineStarted{1, 4000, 0});
    auto plan = std::make_shared<Plan>();
    for (size_t i = 0; i < timeouts_ms.size(); i++) {
      TaskDef& def = plan->defs.emplace_back();
      def.name = "t" + std::to_string(i);
      def.timeout_ms = timeouts_ms[i];
      def.retry.max = 0;
      TaskNode& node = plan->nodes.emplace_back();
      node.name = def.name;
      node.def = static_cast<uint32_t>(i);
    }
    RunSubmitted submitted;
    submitted.run = "r";
    submitted.plan = std::move(plan);
    feed(1000, submitted);
    set_budget(1000, limit_usd);
    resolve(1000);
  }
  void set_budget(Time at, int64_t limit_usd, int64_t before_usd = 0) {
    BudgetTerms terms;
    terms.prices.currency = "USD";
    terms.prices.base.cpu_hour = 3600 * kDollar;
    terms.limit_nano = limit_usd * kDollar;
    terms.before_nano = before_usd * kDollar;
    feed(at, BudgetSet{"r", terms});
  }
  void resolve(Time at) {
    for (UnitId unit = 0; unit < run().units.size(); unit++) {
      if (run().units[unit].phase != Phase::resolving) continue;
      InputsResolved resolved;
      resolved.run = "r";
      resolved.unit = unit;
      resolved.key = sha256("key" + std::to_string(unit));
      feed(at, resolved);
    }
  }
  void feed(Time at, Event event) {
    REQUIRE(admit(state, event));
    apply(state, {state.sequence + 1, at, std::move(event)}, commands);
    REQUIRE(check_invariants(state) == "");
  }
  /// Starts what the scheduler proposes; returns how many attempts.
  size_t start(Time at) {
    size_t started = 0;
    for (Event& event : schedule(state, 100)) {
      started += std::holds_alternative<Assigned>(event);
      feed(at, std::move(event));
    }
    return started;
  }
  void succeed(Time at, UnitId unit) {
    feed(at, AttemptSucceeded{current_attempt(run(), unit), sha256("result"), nullptr, {}});
  }
  template <typename C>
  std::vector<C> take() {
    std::vector<C> found;
    for (const Command& command : commands)
      if (const auto* each = std::get_if<C>(&command)) found.push_back(*each);
    commands.clear();
    return found;
  }
  double spent_usd() const { return run().budget->spent_nano / kDollar; }
  double used_usd(Time at) const { return used_nano(state, run(), at) / kDollar; }
  const Run& run() const { return state.runs.at("r"); }

  State state;
  std::vector<Command> commands;
};

}  // namespace

TEST_CASE("running attempts accrue what they hold, and ended ones have spent it") {
  BudgetEngine engine(100, {0, 0});
  CHECK(engine.start(2000) == 2);
  CHECK(engine.used_usd(2000) == 0);
  CHECK(engine.used_usd(5000) == Approx(6));  // 2 CPUs for 3 s
  engine.succeed(5000, 0);
  CHECK(engine.spent_usd() == Approx(3));
  CHECK(engine.used_usd(7000) == Approx(8));
}

TEST_CASE("an attempt starts only if its timeout fits into what is left") {
  BudgetEngine engine(10, {11'000, 9000});
  CHECK(engine.start(2000) == 1);
  CHECK(engine.run().units[0].phase == Phase::ready);
  CHECK(engine.run().units[1].phase == Phase::running);
}

TEST_CASE("nothing runs and nothing fits: the run is interrupted, and says why") {
  BudgetEngine engine(10, {11'000});
  CHECK(engine.start(2000) == 0);
  CHECK(engine.run().status == RunStatus::interrupted);
  CHECK(engine.run().budget->is_spent);
  CHECK(engine.take<WarnOfBudget>().size() == 1);
  CHECK(explain_wait(engine.state, "r", 0) ==
        "its run has used up its budget: `flow resume r` with a larger --budget continues it");
}

TEST_CASE("a cheaper task starts while a dearer one waits") {
  BudgetEngine engine(10, {11'000, 2000, 2000});
  CHECK(engine.start(2000) == 2);
  engine.succeed(3000, 1);
  CHECK(engine.start(3000) == 0);
  CHECK(engine.run().status == RunStatus::running);
  engine.succeed(3000, 2);
  CHECK(engine.start(3000) == 0);
  CHECK(engine.run().status == RunStatus::interrupted);
}

TEST_CASE("the cheapest of several tasks that ask for the same starts") {
  BudgetEngine engine(10, {11'000, 12'000, 13'000, 2000});
  CHECK(engine.start(2000) == 1);
  CHECK(engine.run().units[3].phase == Phase::running);
  engine.succeed(3000, 3);
  CHECK(engine.start(3000) == 0);
  CHECK(engine.run().status == RunStatus::interrupted);
}

TEST_CASE("the longest finished attempt of a task is the estimate of its next ones") {
  BudgetEngine engine(20, {15'000});
  CHECK(engine.start(2000) == 1);
  Assigned again{current_attempt(engine.run(), 0)};
  CHECK(estimate_nano(engine.state, engine.run(), again) == Approx(15e9));
  engine.succeed(6000, 0);
  CHECK(engine.run().budget->longest_ms == std::vector<int64_t>{4000});
  CHECK(estimate_nano(engine.state, engine.run(), again) == Approx(4e9));
}

TEST_CASE("timers warn at 80% and stop the run at 100%") {
  BudgetEngine engine(10, {0});
  engine.start(2000);
  auto timers = engine.take<SetTimer>();
  REQUIRE(timers.size() == 1);
  CHECK(timers[0].unit == kBudgetTimer);
  CHECK(timers[0].at == 10'000);  // 8 s at 1 USD per second
  engine.feed(10'000, TimerFired{"r", kBudgetTimer, timers[0].serial});
  CHECK(engine.run().budget->has_warned);
  CHECK(!engine.run().budget->is_spent);
  timers = engine.take<SetTimer>();
  REQUIRE(timers.size() == 1);
  CHECK(timers[0].at == 12'000);
  CHECK(!admit(engine.state, TimerFired{"r", kBudgetTimer, timers[0].serial - 1}));
  engine.feed(12'000, TimerFired{"r", kBudgetTimer, timers[0].serial});
  CHECK(engine.run().budget->is_spent);
  auto stops = engine.take<StopAttempt>();
  REQUIRE(stops.size() == 1);
  CHECK(!stops[0].kill);
  CHECK(engine.run().status == RunStatus::running);  // until the attempt has ended
  engine.feed(13'000, AttemptStopped{current_attempt(engine.run(), 0)});
  CHECK(engine.run().status == RunStatus::interrupted);
  CHECK(engine.spent_usd() == Approx(11));  // with what it used while it stopped
}

TEST_CASE("an attempt that ends adds no timer: the one before fires early and asks again") {
  BudgetEngine engine(100, {0, 0});
  engine.start(2000);
  auto timers = engine.take<SetTimer>();
  REQUIRE(timers.size() == 2);
  CHECK(timers[1].at == 42'000);  // 80 USD, at 2 USD per second
  engine.succeed(5000, 0);
  CHECK(engine.take<SetTimer>().empty());
  engine.feed(42'000, TimerFired{"r", kBudgetTimer, timers[1].serial});
  CHECK(!engine.run().budget->has_warned);
  timers = engine.take<SetTimer>();
  REQUIRE(timers.size() == 1);
  CHECK(timers[0].at == 79'000);  // 43 USD are used
}

TEST_CASE("a run that ends within its budget is not stopped") {
  BudgetEngine engine(10, {0});
  engine.start(2000);
  engine.succeed(12'000, 0);  // exactly all of it
  CHECK(engine.spent_usd() == Approx(10));
  CHECK(!engine.run().budget->is_spent);
}

TEST_CASE("a larger budget continues the run") {
  BudgetEngine engine(10, {11'000});
  engine.start(2000);
  REQUIRE(engine.run().status == RunStatus::interrupted);
  engine.set_budget(3000, 20);
  engine.feed(3000, RetryRequested{"r"});
  engine.resolve(3000);
  CHECK(engine.start(3000) == 1);
  engine.succeed(4000, 0);
  CHECK(engine.spent_usd() == Approx(1));
}

TEST_CASE("the same budget stops the run again") {
  BudgetEngine engine(10, {11'000});
  engine.start(2000);
  engine.feed(3000, RetryRequested{"r"});
  CHECK(!engine.run().budget->is_spent);
  engine.resolve(3000);
  CHECK(engine.start(3000) == 0);
  CHECK(engine.run().status == RunStatus::interrupted);
}

TEST_CASE("an attempt that ended with its engine has spent what it held until the last record") {
  BudgetEngine engine(10, {0, 0});
  CHECK(engine.start(2000) == 2);
  engine.succeed(5000, 1);
  engine.feed(60'000, EngineStarted{2, 4000, 0});
  CHECK(engine.spent_usd() == Approx(6));  // 3 s each
  std::vector<Consumption> used = consumption_of(engine.run(), 0);
  REQUIRE(used.size() == 1);
  CHECK(used[0].outcome == AttemptEnding::lost);
  CHECK(used[0].cpu_milli_ms == 3'000'000);
  CHECK(used[0].attempts == 1);
  engine.feed(61'000, RetryRequested{"r"});
  engine.resolve(61'000);
  CHECK(engine.start(61'000) == 1);
  auto timers = engine.take<SetTimer>();
  REQUIRE(!timers.empty());
  CHECK(timers.back().at == 63'000);  // 8 of 10 USD
}

TEST_CASE("what was spent before, with other code, counts") {
  BudgetEngine engine(10, {5000});
  engine.set_budget(1500, 10, 6);
  CHECK(engine.start(2000) == 0);
  CHECK(engine.run().status == RunStatus::interrupted);
}

TEST_CASE("a retry of a task keeps what its success had cost") {
  BudgetEngine engine(100, {0});
  engine.start(2000);
  engine.succeed(5000, 0);
  CHECK(engine.run().consumed.empty());  // the unit itself says it
  CHECK(consumption_of(engine.run(), 0).at(0).cpu_milli_ms == 3'000'000);
  engine.feed(6000, ValueGathered{"r", kNoNode, sha256("result")});
  engine.feed(7000, RetryRequested{"r", true, 0});
  engine.resolve(7000);
  CHECK(engine.start(7000) == 1);
  CHECK(consumption_of(engine.run(), 0).at(0).cpu_milli_ms == 3'000'000);
  engine.succeed(8000, 0);
  std::vector<Consumption> used = consumption_of(engine.run(), 0);
  REQUIRE(used.size() == 1);
  CHECK(used[0].attempts == 2);
  CHECK(used[0].cpu_milli_ms == 4'000'000);
  CHECK(engine.spent_usd() == Approx(4));
}
