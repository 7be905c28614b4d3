// A gang whose worker rejoins: it continues only if none of the ranks that the worker was to run is
// missing.
#include <catch2/catch.hpp>
#include <map>

#include "tests/runtime/open_engine.hpp"

using namespace flow;

namespace {

/// Keeps the ranks that it was ordered to run, and its other orders.
class RankConnection final : public WorkerConnection {
 public:
  void stage(std::vector<AttemptOrder> orders, uint64_t) override {
    for (const AttemptOrder& order : orders) ranks.push_back(order.rank_id());
  }
  void release(uint64_t) override {}
  void exchange_addresses(const core::AttemptId&, const std::vector<std::string>&) override {}
  void stop(const core::AttemptId& id, bool) override { stopped.push_back(id); }
  void ack_saved(const core::AttemptId&, const std::string&, bool) override {}
  void ack_logs(size_t) override {}
  void accept_join(uint64_t) override {}
  void ack_reports(uint64_t) override {}
  void disconnect(const std::string&) override {}

  std::vector<RankId> ranks;
  std::vector<core::AttemptId> stopped;
};

/// A head with two workers, and a gang of four ranks that runs there: ranks 0 and 1 on the worker
/// `first`, ranks 2 and 3 on `second`. It has no retries of its own.
struct GangOnWorkers {
  OpenEngine engine{make_memory_store(), true};
  std::map<std::string, std::shared_ptr<RankConnection>> connections;
  std::string first = "a", second = "b";
  core::AttemptId id{};

  GangOnWorkers() {
    join(first, {});
    join(second, {});
    auto plan = std::make_shared<Plan>(*chain_plan(1));
    plan->defs[0].resources.ranks = 4;
    plan->defs[0].resources.where = "pool=gang";
    REQUIRE(engine.loop->submit(engine.prepared("r", plan), 0).ok());
    engine.settle();
    if (connections["b"]->ranks.at(0).rank == 0) std::swap(first, second);
    id = connections[first]->ranks.at(0).attempt;
    CHECK(connections[first]->ranks == std::vector<RankId>{{id, 0}, {id, 1}});
    CHECK(connections[second]->ranks == std::vector<RankId>{{id, 2}, {id, 3}});
  }
  void join(const std::string& name, std::vector<RankOffer> ranks, bool is_restarted = false) {
    EngineComponents& parts = engine.loop->parts();
    parts.membership.disconnect(name, "the connection broke");
    auto& connection = connections[name] = std::make_shared<RankConnection>();
    parts.workers.attach(name, connection, name + ":1");
    core::WorkerInfo info;
    info.name = name;
    info.cpus_milli = 2'000;
    info.labels = {{"pool", "gang"}};
    std::optional<bool> is_admitted;
    parts.membership.join({info, std::move(ranks), is_restarted, {}},
                          [&](bool admitted) { is_admitted = admitted; });
    engine.settle();
    REQUIRE(is_admitted == true);
  }
  RankOffer running(uint32_t rank) const { return {{id, rank}, false}; }
  RankOffer ended(uint32_t rank) const { return {{id, rank}, true}; }
  void report_end(uint32_t rank, TaskFinished::Outcome outcome) {
    TaskFinished finished;
    finished.outcome = outcome;
    finished.value = encode_value(Value(true));
    finished.failure.cause = core::Cause::signal;
    engine.loop->parts().on_reports({{id, rank, 0, std::move(finished)}});
    engine.settle();
  }
  const core::Unit& unit() { return engine.run("r").units[0]; }
  bool has_stops() {
    return !connections["a"]->stopped.empty() || !connections["b"]->stopped.empty();
  }
  void check_continues() {
    CHECK(core::current_attempt(engine.run("r"), 0) == id);
    CHECK(unit().phase == core::Phase::running);
    CHECK_FALSE(has_stops());
  }
  /// The attempt has failed, and begins again although the task has no retries.
  void check_restarts() {
    for (const char* name : {"a", "b"}) {
      CAPTURE(name);
      CHECK(std::ranges::count(connections[name]->stopped, id) > 0);
    }
    REQUIRE(unit().detail);
    REQUIRE(unit().detail->failed.size() == 1);
    CHECK(unit().detail->failed[0].cause == core::Cause::lost);
    engine.now += 60'000;  // more than the delay of a retry
    engine.settle();
    CHECK(unit().phase == core::Phase::running);
    CHECK(unit().attempts == 2);
  }
};

}  // namespace

TEST_CASE("a gang continues if its worker rejoins with all its ranks") {
  GangOnWorkers gang;
  gang.join(gang.first, {gang.running(0), gang.running(1)});
  gang.join(gang.second, {gang.running(2), gang.running(3)});
  gang.check_continues();
}

TEST_CASE("a gang restarts if the worker of its rank 0 rejoins without another rank") {
  GangOnWorkers gang;
  gang.join(gang.first, {gang.running(0)});
  CHECK(gang.has_stops());
  CHECK(gang.unit().attempts == 1);  // rank 0 may be writing a checkpoint
  gang.report_end(0, TaskFinished::Outcome::failed);
  gang.check_restarts();
  CHECK(gang.unit().detail->failed[0].worker ==
        *worker_id_of(gang.engine.loop->parts().state, gang.first));
}

TEST_CASE("a gang restarts if its worker rejoins without rank 0") {
  GangOnWorkers gang;
  bool is_restarted = GENERATE(false, true);
  CAPTURE(is_restarted);
  // If its process has restarted, no rank runs there: only the end of rank 1 is in the spool.
  gang.join(gang.first, {is_restarted ? gang.ended(1) : gang.running(1)}, is_restarted);
  gang.check_restarts();
}

TEST_CASE("a gang restarts if another worker than that of rank 0 rejoins without a rank") {
  GangOnWorkers gang;
  const std::vector<std::vector<RankOffer>> offers{
      {}, {gang.running(2)}, {gang.running(3)}, {gang.ended(3)}};
  const auto& offer = offers[GENERATE(size_t{0}, size_t{1}, size_t{2}, size_t{3})];
  gang.join(gang.second, offer);
  CHECK(gang.has_stops());
  gang.report_end(0, TaskFinished::Outcome::failed);
  gang.check_restarts();
}

TEST_CASE("a rank that has ended is not missing when its worker rejoins") {
  GangOnWorkers gang;
  SECTION("this head has its report") {
    gang.report_end(3, TaskFinished::Outcome::succeeded);
    gang.join(gang.second, {gang.running(2)});
    gang.report_end(2, TaskFinished::Outcome::succeeded);
    gang.join(gang.second, {});
  }
  SECTION("a former head has its report, or the worker reports it next") {
    gang.join(gang.second, {gang.running(2), gang.ended(3)});
    gang.join(gang.second, {gang.ended(2), gang.ended(3)}, true);
  }
  gang.check_continues();
}

TEST_CASE("a gang whose rank 0 has ended takes its outcome although other ranks are missing") {
  GangOnWorkers gang;
  gang.join(gang.first, {gang.ended(0)}, true);
  gang.check_continues();
  gang.report_end(0, TaskFinished::Outcome::succeeded);
  CHECK(gang.engine.loop->parts().state.runs.empty());
  CHECK(gang.engine.listener->texts.back() == "end");
}

TEST_CASE("a worker is not told to stop a rank of a former attempt that has ended") {
  GangOnWorkers gang;
  core::AttemptId former = gang.id;
  former.epoch--;
  gang.join(gang.second, {gang.running(2), gang.running(3), {{former, 2}, true}});
  gang.check_continues();
  gang.join(gang.second, {gang.running(2), gang.running(3), {{former, 2}, false}});
  CHECK(gang.connections[gang.second]->stopped == std::vector<core::AttemptId>{former});
}
