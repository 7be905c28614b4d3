// What the newest attempt of a unit used.
#include <catch2/catch.hpp>

#include "engine/core/core.hpp"

using namespace flow;
using namespace flow::core;

namespace {

constexpr AttemptUsage kUsed{int64_t{200} << 20, 1'500'000, 4096, 0, 250'000, 500'000};

class UsageEngine {
 public:
  explicit UsageEngine(int32_t gpus_milli = 0) {
    feed(1, EngineStarted{1, 1000, 0});
    if (gpus_milli > 0) feed(1, GpusFound{{{0, "GPU-a", "A", "", 80, -1, false}}, 0});
    auto plan = std::make_shared<Plan>();
    plan->defs.resize(1);
    plan->defs[0].name = "t";
    plan->defs[0].resources.gpus_milli = gpus_milli;
    plan->defs[0].retry.max = 1;
    plan->defs[0].retry.backoff_ms = 1000;
    plan->nodes.resize(1);
    plan->nodes[0].name = "t";
    RunSubmitted submitted;
    submitted.run = "r";
    submitted.plan = std::move(plan);
    submitted.user = "ada";
    feed(500, submitted);
    resolve(1000);
  }
  void resolve(Time at) {
    InputsResolved resolved;
    resolved.run = "r";
    resolved.key = sha256("key");
    feed(at, resolved);
  }
  void feed(Time at, Event event) {
    REQUIRE(admit(state, event));
    std::vector<Command> out;
    apply(state, {state.sequence + 1, at, std::move(event)}, out);
    REQUIRE(check_invariants(state) == "");
  }
  AttemptId assign(Time at, std::vector<std::string> gpus = {}) {
    AttemptId id = next_attempt(state, run(), 0);
    feed(at, Assigned{id, std::move(gpus)});
    return id;
  }
  void succeed(Time at, const AttemptId& id) {
    AttemptSucceeded succeeded{id, sha256("result"), nullptr, {}};
    succeeded.usage = kUsed;
    feed(at, succeeded);
  }
  const Run& run() const { return state.runs.at("r"); }
  AttemptTimes times() const { return times_of(run(), 0); }
  AttemptTotals totals() const { return totals_of(run(), 0); }
  State state;
};

}  // namespace

TEST_CASE("an attempt that ended has its times, its totals and no GPU-seconds") {
  UsageEngine engine;
  CHECK(engine.run().user == "ada");
  CHECK(engine.times() == AttemptTimes{});
  CHECK(engine.totals() == AttemptTotals{});
  AttemptId id = engine.assign(1250);
  CHECK(engine.times() == AttemptTimes{0.25F, -1, -1, -1});
  CHECK(engine.totals() == AttemptTotals{});
  engine.succeed(3000, id);
  CHECK(engine.times() == AttemptTimes{0.25F, 0.25F, 0.5F, 1.5F});
  CHECK(engine.totals() == AttemptTotals{kUsed.peak_memory, 4096, 0, 0, 0, 0, 0});
}

TEST_CASE("an attempt that is retried begins anew, and its queue from the end of the backoff") {
  UsageEngine engine;
  AttemptFailed failed{engine.assign(1000), {Cause::user_error, "no", "", 0}};
  failed.usage = kUsed;
  engine.feed(2000, failed);
  CHECK(engine.times().cpu_s == 1.5F);
  CHECK(engine.totals().peak_memory == kUsed.peak_memory);
  engine.feed(5000, TimerFired{"r", 0, engine.run().units[0].timer_serial});
  AttemptId second = engine.assign(5500);
  CHECK(engine.times() == AttemptTimes{0.5F, -1, -1, -1});
  CHECK(engine.totals() == AttemptTotals{});
  engine.feed(6000, AttemptStopped{second});
  CHECK(engine.times() == AttemptTimes{0.5F, -1, -1, -1});
  CHECK(engine.totals() == AttemptTotals{-1, -1, -1, 0, 0, 0, 0});
}

TEST_CASE("an attempt that is requeued waits since it was ready first") {
  UsageEngine engine;
  engine.feed(1500, AttemptRequeued{engine.assign(1250)});
  engine.assign(2000);
  CHECK(engine.times().queue_s == 1.0F);
}

TEST_CASE("GPU-seconds count from the assignment to the end") {
  UsageEngine engine(500);
  AttemptId id = engine.assign(1000, {"GPU-a"});
  CHECK(engine.totals().gpu_s == -1);
  engine.succeed(5000, id);
  CHECK(engine.totals().gpu_s == 2.0);  // half a GPU
}

TEST_CASE("the use of GPUs is that of the newest attempt, and is counted with what it held") {
  UsageEngine engine(500);
  AttemptFailed failed{engine.assign(1000, {"GPU-a"}), {Cause::user_error, "no", "", 0}};
  failed.usage.gpu_used_us = 500'000;
  failed.usage.gpu_measured_us = 800'000;
  failed.usage.gpu_energy_mj = 123'456;
  engine.feed(3000, failed);
  CHECK(engine.totals() == AttemptTotals{-1, -1, -1, 1.0, 0.5, 0.8, 123.456});
  std::vector<Consumption> used = consumption_of(engine.run(), 0);
  REQUIRE(used.size() == 1);
  CHECK(used[0].gpu_used_milli_ms == 500'000);
  CHECK(used[0].gpu_measured_milli_ms == 800'000);
  CHECK(used[0].gpu_energy_mj == Approx(123'456));
  engine.feed(5000, TimerFired{"r", 0, engine.run().units[0].timer_serial});
  engine.succeed(6000, engine.assign(5000, {"GPU-a"}));
  CHECK(engine.totals().gpu_s == 0.5);
  CHECK(engine.totals().gpu_used_s == -1);  // it was not measured
}

TEST_CASE("GPU-seconds of an attempt that ended with its engine count up to the last record") {
  UsageEngine engine(1000);
  engine.assign(1000, {"GPU-a"});
  engine.feed(4000, WorkersAnnounced{1});
  engine.feed(90'000, EngineStarted{2, 1000, 0});
  CHECK(engine.totals().gpu_s == 3.0);
}

TEST_CASE("a cached task has no figures") {
  UsageEngine engine;
  AttemptFailed failed{engine.assign(1000), {Cause::user_error, "no", "", 0}};
  failed.usage = kUsed;
  engine.feed(2000, failed);
  Run copy = engine.run();
  copy.units[0].cached = true;
  CHECK(times_of(copy, 0) == AttemptTimes{});
  CHECK(totals_of(copy, 0) == AttemptTotals{});
}

TEST_CASE("what is sent between machines for an attempt is counted with what it held") {
  UsageEngine engine;
  AttemptId id = engine.assign(1000);
  AttemptSucceeded succeeded{id, sha256("result"), nullptr, {}};
  CHECK(!engine.run().knows_traffic);
  SECTION("something") {
    succeeded.usage.moved_bytes = 3'000'000;
    engine.feed(2000, succeeded);
    std::vector<Consumption> used = consumption_of(engine.run(), 0);
    REQUIRE(used.size() == 1);
    CHECK(used[0].moved_bytes == 3'000'000);
    CHECK(used[0].attempts == 1);
    CHECK(engine.run().knows_traffic);
  }
  SECTION("nothing, which needs no entry") {
    succeeded.usage.moved_bytes = 0;
    engine.feed(2000, succeeded);
    CHECK(engine.run().consumed.empty());
    CHECK(engine.run().knows_traffic);
  }
  SECTION("unknown") {
    engine.feed(2000, succeeded);
    CHECK(engine.run().consumed.empty());
    CHECK(!engine.run().knows_traffic);
  }
}

TEST_CASE("ranks that wait for others hold their GPUs meanwhile, and do not stage then") {
  UsageEngine engine(1000);
  engine.feed(500, WorkerJoined{{"w1", 1000, 0, {{0, "GPU-b", "B", "", 80, -1, false}}}});
  Run& run = engine.state.runs.at("r");
  auto plan = std::make_shared<Plan>(*run.plan);
  plan->defs[0].resources.ranks = plan->defs[0].resources.ranks_max = 2;
  run.plan = plan;
  rebuild_derived(engine.state);
  AttemptId id = next_attempt(engine.state, engine.run(), 0);
  engine.feed(1000, Assigned{id, {"GPU-a"}, 0, {{1, {"GPU-b"}}}, {1000, 0}});
  AttemptSucceeded succeeded{id, sha256("result"), nullptr, {}};
  succeeded.usage.stage_us = 2'000'000;
  succeeded.usage.connect_wait_us = 1'500'000;
  succeeded.usage.leave_wait_us = 500'000;
  engine.feed(9000, succeeded);
  std::vector<Consumption> used = consumption_of(engine.run(), 0);
  REQUIRE(used.size() == 1);
  CHECK(used[0].gpu_rank_milli_ms == Approx(2'000'000));  // 2 s of one GPU
  CHECK(used[0].gpu_stage_milli_ms == Approx(2 * 2'000'000 - 1'500'000));
}

TEST_CASE("an attempt with one rank waits for no other") {
  UsageEngine engine(500);
  engine.succeed(5000, engine.assign(1000, {"GPU-a"}));
  std::vector<Consumption> used = consumption_of(engine.run(), 0);
  REQUIRE(used.size() == 1);
  CHECK(used[0].gpu_rank_milli_ms == 0);
}
