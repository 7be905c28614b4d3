// Workers that join and leave, with the core only.
#include "engine/runtime/worker_membership.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

/// An engine that leads workers and runs turns when the test calls it.
struct Cluster {
  core::State state;
  StateClock clock;
  WorkerRegistry workers;
  std::vector<TurnInput> inbox;
  std::vector<std::function<void()>> after_effects;
  std::vector<std::string> events;
  GangSupervisor gangs{state, clock, workers,
                       [this](core::Event event) { record(std::move(event)); },
                       [](const core::RunId&) { return int64_t{0}; }};
  WorkerMembership membership{
      state,
      gangs,
      true,
      {[this](TurnInput input) { inbox.push_back(std::move(input)); },
       [this](core::Event event) { record(std::move(event)); },
       [this](std::function<void()> effect) { after_effects.push_back(std::move(effect)); }},
      {"this boot", 8, int64_t{16} << 30}};

  Cluster() {
    core::EngineStarted started;
    started.epoch = 1;
    started.cpus_milli = 1'000;
    started.memory_bytes = int64_t{1} << 30;
    started.leads_workers = true;
    record(started);
    events.clear();
  }
  void record(core::Event event) {
    if (!core::admit(state, event)) return;
    if (std::holds_alternative<core::WorkerJoined>(event)) events.push_back("joined");
    if (std::holds_alternative<core::WorkerDisconnected>(event)) events.push_back("disconnected");
    if (std::holds_alternative<core::WorkerDraining>(event)) events.push_back("draining");
    if (std::holds_alternative<core::WorkerLost>(event)) events.push_back("lost");
    if (std::holds_alternative<core::GpuFailed>(event)) events.push_back("GPU failed");
    if (std::holds_alternative<core::GpusFound>(event)) events.push_back("GPUs found");
    if (std::holds_alternative<core::AttemptFailed>(event)) events.push_back("attempt failed");
    std::vector<core::Command> ignored;
    core::apply(state, {state.sequence + 1, 1'000, std::move(event)}, ignored);
  }
  void turn() {
    for (TurnInput& input : std::exchange(inbox, {})) {
      Batch batch;
      if (auto* callback = std::get_if<StateCallback>(&input.what)) callback->run(batch, state);
      if (auto* posted = std::get_if<PostedEvent>(&input.what)) record(posted->event);
      if (input.outcome) input.outcome(true);
    }
    membership.lose_waiting();
    for (auto& effect : std::exchange(after_effects, {})) effect();
  }
  static core::WorkerInfo info(const std::string& name, const std::vector<std::string>& gpus = {}) {
    core::WorkerInfo worker;
    worker.name = name;
    worker.cpus_milli = 4'000;
    worker.memory_bytes = int64_t{8} << 30;
    for (const std::string& uuid : gpus) worker.gpus.push_back({0, uuid, "A", "", 80, -1, false});
    return worker;
  }
  std::optional<bool> join(core::WorkerInfo worker, std::vector<RankOffer> ranks = {}) {
    std::optional<bool> decided;
    membership.join(
        {std::move(worker), std::move(ranks), false, {"that boot", 4, int64_t{8} << 30}},
        [&](bool admitted) { decided = admitted; });
    CHECK_FALSE(decided);
    turn();
    return decided;
  }
  /// A gang that runs on this machine (rank 0) and on the worker `name`.
  core::AttemptId run_gang(const std::string& name) {
    core::AttemptId id{"r", 0, 1, core::fencing_token(1, 0)};
    core::Run& run = state.runs["r"];
    run.id = core::RunId("r");
    auto plan = std::make_shared<Plan>();
    plan->defs.resize(1);
    plan->nodes.resize(1);
    run.plan = plan;
    run.units.resize(1);
    run.units[0].phase = core::Phase::running;
    run.units[0].attempts = 1;
    run.units[0].epoch = id.epoch;
    auto detail = std::make_shared<core::UnitDetail>();
    detail->others.emplace_back().worker = *worker_id_of(state, name);
    run.units[0].detail = detail;
    gangs.note_rank_address(id, 0, "x");  // a gang is known from its first report on
    return id;
  }
};

using Events = std::vector<std::string>;

}  // namespace

TEST_CASE("a worker joins, disconnects, rejoins, drains and is lost") {
  Cluster cluster;
  CHECK(cluster.join(Cluster::info("a")) == true);
  CHECK(worker_id_of(cluster.state, "a") == core::WorkerId{1});
  cluster.membership.disconnect("a", "the line was cut");
  cluster.turn();
  CHECK(disconnected_workers(cluster.state) == Events{"a"});
  CHECK(disconnected_workers(cluster.state, true).empty());  // it runs no tasks
  CHECK(cluster.join(Cluster::info("a")) == true);
  CHECK(disconnected_workers(cluster.state).empty());
  cluster.membership.drain("a", "maintenance");
  cluster.membership.lose("a", "it left");
  cluster.turn();
  CHECK(cluster.events == Events{"joined", "disconnected", "joined", "draining", "lost"});
}

TEST_CASE("reports about an unknown worker are ignored") {
  Cluster cluster;
  cluster.membership.disconnect("x", "");
  cluster.membership.drain("x", "");
  cluster.membership.fail_gpu("x", "GPU-1", "Xid 79", true);
  cluster.membership.lose("x", "");
  cluster.turn();
  CHECK(cluster.events.empty());
}

TEST_CASE("a worker that the core rejects is not remembered") {
  Cluster cluster;
  core::WorkerInfo worker = Cluster::info("");
  CHECK(cluster.join(worker) == false);
  CHECK(cluster.events.empty());
}

TEST_CASE("a GPU that two workers offer moves to the other one when the first is lost") {
  Cluster cluster;
  REQUIRE(cluster.join(Cluster::info("a", {"GPU-1"})) == true);
  REQUIRE(cluster.join(Cluster::info("b", {"GPU-1"})) == true);
  CHECK(cluster.state.workers[2].info.gpus.empty());
  CHECK(cluster.membership.note_of("b").find("GPU-1") != std::string::npos);
  cluster.events.clear();
  cluster.membership.lose("a", "it left");
  cluster.turn();
  CHECK(cluster.events == Events{"lost", "GPUs found"});
  CHECK(cluster.state.workers[2].info.gpus.size() == 1);
}

TEST_CASE("the loss of a worker waits until its gang has ended elsewhere") {
  Cluster cluster;
  REQUIRE(cluster.join(Cluster::info("a")) == true);
  core::AttemptId id = cluster.run_gang("a");
  cluster.events.clear();
  cluster.membership.lose("a", "it left");
  cluster.turn();
  CHECK(cluster.events == Events{"disconnected"});
  cluster.turn();
  CHECK(cluster.events == Events{"disconnected"});
  SECTION("rank 0 ends") {
    cluster.state.runs["r"].units[0].phase = core::Phase::done;
    cluster.turn();
    CHECK(cluster.events == Events{"disconnected", "lost"});
  }
  SECTION("the worker rejoins before") {
    CHECK(cluster.join(Cluster::info("a"), {{{id, 1}, false}}) == true);
    cluster.state.runs["r"].units[0].phase = core::Phase::done;
    cluster.turn();
    CHECK(cluster.events == Events{"disconnected", "joined"});
  }
}
