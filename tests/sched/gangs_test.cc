// Gangs on small random clusters, checked against the assignments alone: all ranks or none, within
// capacity, no waiting without a cause, and no starvation.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <string>

#include "engine/core/gangs.hpp"
#include "engine/sched/sched.hpp"
#include "tests/sim/random.hpp"

using namespace flow;
using namespace flow::core;

namespace {

struct Ask {
  int32_t cpus = 1, gpus = 0;  // whole GPUs per rank
  uint32_t ranks = 1, ranks_max = 0;
  int64_t licences_milli = 0;  // per rank
};

class Cluster {
 public:
  Cluster() { feed(EngineStarted{1, 0, 0}); }

  void feed(Event event) {
    REQUIRE(admit(state, event));
    apply(state, {state.sequence + 1, now, std::move(event)}, commands_);
    REQUIRE(check_invariants(state) == "");
  }
  void join(int32_t cpus, int32_t gpus, const std::string& rack, int64_t licences_milli = 0) {
    WorkerInfo worker{"w" + std::to_string(state.workers.size()), cpus * 1000, 0, {}, {}};
    for (int32_t i = 0; i < gpus; i++)
      worker.gpus.push_back({uint32_t(i), "GPU-" + std::to_string(i), "A", "", 80, -1, false});
    if (!rack.empty()) worker.labels = {{"rack", rack}};
    if (licences_milli > 0) worker.custom_resources = {{"licence", licences_milli}};
    feed(WorkerJoined{worker});
  }
  /// Each is a task of its own definition, except those that share one by index.
  void submit(const std::vector<Ask>& asks, const std::vector<uint32_t>& defs) {
    Plan plan;
    for (const Ask& ask : asks) {
      TaskDef def;
      def.name = "t";
      def.retry.infra = 1000;
      def.resources.cpus_milli = ask.cpus * 1000;
      def.resources.gpus_milli = ask.gpus * 1000;
      def.resources.ranks = ask.ranks;
      def.resources.ranks_max = ask.ranks_max;
      if (ask.licences_milli > 0)
        def.resources.custom_resources = {{"licence", ask.licences_milli}};
      plan.defs.push_back(def);
    }
    for (uint32_t def : defs) {
      TaskNode node;
      node.name = "n" + std::to_string(plan.nodes.size());
      node.def = def;
      node.args = Value::list({});
      plan.nodes.push_back(std::move(node));
    }
    RunSubmitted e;
    e.run = "r";
    e.plan = std::make_shared<const Plan>(std::move(plan));
    feed(e);
    for (UnitId unit = 0; unit < run().units.size(); unit++) resolve(unit);
  }
  void resolve(UnitId unit) {
    feed(InputsResolved{"r", unit, sha256(std::to_string(unit)), false, {}, nullptr, {}});
  }
  std::vector<UnitId> schedule_all() {
    std::vector<UnitId> started;
    for (const Event& event : schedule(state, 1000)) {
      started.push_back(std::get<Assigned>(event).id.unit);
      feed(event);
    }
    return started;
  }
  void finish(UnitId unit, Time took_ms) {
    feed(AttemptSucceeded{
        current_attempt(run(), unit), sha256("v"), nullptr, {}, std::max<Time>(took_ms, 1) * 1000});
  }
  const Run& run() const { return state.runs.at("r"); }
  bool is_running(UnitId unit) const { return run().units[unit].phase == Phase::running; }
  bool is_ready(UnitId unit) const { return run().units[unit].phase == Phase::ready; }

  State state;
  Time now = 0;

 private:
  std::vector<Command> commands_;
};

struct Left {
  int64_t cpus = 0, gpus = 0, licences = 0;  // thousandths, except GPUs
  int64_t ranks_of(const Ask& ask, int64_t cpus_milli) const {
    int64_t ranks = cpus / std::max<int64_t>(cpus_milli, 1);
    if (ask.licences_milli > 0) ranks = std::min(ranks, licences / ask.licences_milli);
    return ask.gpus > 0 ? std::min(ranks, gpus / ask.gpus) : ranks;
  }
};

/// The remaining resources of each worker, computed from the assignments of running units.
std::map<WorkerId, Left> lefts_of(const Cluster& cluster) {
  std::map<WorkerId, Left> lefts;
  for (size_t i = 1; i < cluster.state.workers.size(); i++) {
    const WorkerState& worker = cluster.state.workers[i];
    if (!worker.is_up) continue;
    const ResourceQuantities& custom_resources = worker.info.custom_resources;
    lefts[WorkerId(i)] = {worker.info.cpus_milli, int64_t(worker.info.gpus.size()),
                          custom_resources.empty() ? 0 : custom_resources[0].second};
  }
  for (UnitId unit = 0; unit < cluster.run().units.size(); unit++) {
    if (!cluster.is_running(unit)) continue;
    const Unit& u = cluster.run().units[unit];
    const Resources& asked = def_of(cluster.run(), unit)->resources;
    for_each_rank(u, [&](WorkerId at, const std::vector<std::string>& gpus) {
      int32_t has = cluster.state.workers[at].info.cpus_milli;
      lefts[at].cpus -=
          asked.is_gang() ? u.detail->share.cpus_milli : std::min(asked.cpus_milli, has);
      lefts[at].gpus -= int64_t(gpus.size());
      if (!asked.custom_resources.empty()) lefts[at].licences -= asked.custom_resources[0].second;
    });
  }
  return lefts;
}

Ask random_ask(sim::Random& random, bool is_gang) {
  Ask ask;
  ask.cpus = 1 + int32_t(random.below(2));
  if (random.one_in(3)) ask.gpus = 1;
  if (random.one_in(4)) ask.licences_milli = 400;
  if (!is_gang) return ask;
  ask.ranks = 1 + random.below(5);
  ask.ranks_max = ask.ranks == 1 || random.one_in(3) ? ask.ranks + 1 + random.below(3) : 0;
  return ask;
}

}  // namespace

TEST_CASE(
    "gangs start completely if they fit, on one worker if possible, and do not wait without a "
    "cause") {
  size_t gangs = 0, spread = 0, shrunk = 0;
  for (uint64_t seed = 1; seed <= 400; seed++) {
    INFO("seed " << seed);
    sim::Random random(seed);
    Cluster cluster;
    for (uint32_t i = 2 + random.below(4); i > 0; i--) {
      const char* racks[] = {"", "a", "b"};
      cluster.join(1 + int32_t(random.below(4)), int32_t(random.below(3)), racks[random.below(3)],
                   random.one_in(2) ? 1000 * (1 + random.below(2)) : 0);
    }
    std::vector<Ask> asks;
    std::vector<uint32_t> defs;
    for (uint32_t i = 0; i < 8; i++) {
      asks.push_back(random_ask(random, random.one_in(2)));
      defs.push_back(i);
    }
    cluster.submit(asks, defs);
    for (int round = 0; round < 40 && !is_final(cluster.run().status); round++) {
      std::map<WorkerId, Left> before = lefts_of(cluster);
      std::vector<UnitId> started = cluster.schedule_all();
      for (const auto& [worker, left] : lefts_of(cluster)) {
        CHECK(left.cpus >= 0);
        CHECK(left.gpus >= 0);
        CHECK(left.licences >= 0);
      }
      for (UnitId unit : started) {
        const Unit& u = cluster.run().units[unit];
        size_t ranks = 0;
        for_each_rank(u, [&](WorkerId, const auto&) { ranks++; });
        CHECK(ranks >= asks[unit].ranks);
        CHECK(ranks <= std::max(asks[unit].ranks, asks[unit].ranks_max));
        if (!def_of(cluster.run(), unit)->resources.is_gang()) continue;
        gangs++;
        shrunk += u.detail->share.cpus_milli < asks[unit].cpus * 1000;
        spread += workers_of(u).size() > 1;
        bool has_one = std::any_of(before.begin(), before.end(), [&](const auto& left) {
          return left.second.ranks_of(asks[unit], u.detail->share.cpus_milli) >= int64_t(ranks);
        });
        // Only for the first one it is known what was free, if nothing was reserved.
        bool is_reserved = false;
        for (UnitId other = 0; other < unit; other++)
          is_reserved = is_reserved || cluster.is_ready(other);
        if (unit == started.front() && !is_reserved) CHECK((workers_of(u).size() == 1) == has_one);
      }
      bool is_idle = cluster.run().phase_count(Phase::running) == 0;
      for (UnitId unit = 0; unit < asks.size() && is_idle; unit++) {
        if (!cluster.is_ready(unit)) continue;
        int64_t most_ranks = 0;  // at 0.001 CPU each, only GPUs and licences can be short
        for (const auto& [worker, left] : before) most_ranks += left.ranks_of(asks[unit], 1);
        CHECK(most_ranks < asks[unit].ranks);
      }
      if (is_idle) break;
      cluster.now += 10;
      for (UnitId unit = 0; unit < asks.size(); unit++)
        if (cluster.is_running(unit) && random.one_in(2)) cluster.finish(unit, 10);
    }
  }
  CHECK(gangs > 500);
  CHECK(spread > 100);
  CHECK(shrunk > 50);
}

TEST_CASE("three gangs on four nodes all end, in any order of ends") {
  for (uint64_t seed = 1; seed <= 200; seed++) {
    INFO("seed " << seed);
    sim::Random random(seed);
    Cluster cluster;
    for (int i = 0; i < 4; i++) cluster.join(2, 0, i < 2 ? "a" : "b");
    std::vector<Ask> asks{{1, 0, 8, 0, 0}, {1, 0, 5, 0, 0}, {2, 0, 3, 0, 0}, {1, 0, 1, 0, 0}};
    std::vector<uint32_t> defs{0, 1, 2};
    for (int i = 0; i < 20; i++) defs.push_back(random.below(4));
    cluster.submit(asks, defs);
    for (int round = 0; round < 500 && cluster.run().open_units() > 0; round++) {
      cluster.schedule_all();
      REQUIRE(cluster.run().phase_count(Phase::running) > 0);
      cluster.now += 1 + random.below(20);
      std::vector<UnitId> running;
      for (UnitId unit = 0; unit < defs.size(); unit++)
        if (cluster.is_running(unit)) running.push_back(unit);
      UnitId ends = running[random.below(uint32_t(running.size()))];
      if (random.one_in(4)) {
        cluster.feed(AttemptFailed{current_attempt(cluster.run(), ends),
                                   {Cause::preempted, "preempted", "", 0}});
        cluster.now += 100'000;
        const Unit& u = cluster.run().units[ends];
        if (u.phase == Phase::backoff) cluster.feed(TimerFired{"r", ends, u.timer_serial});
      } else {
        cluster.finish(ends, 10);
      }
    }
    CHECK(cluster.run().counts.succeeded == defs.size());
  }
}

namespace {

constexpr Time kUsual = 1000;

struct Stream {
  Time began = -1;           // the waiting one
  Time last_of_first = 0;    // the last end of those that began before it was ready
  size_t ahead = 0;          // of the stream, in that time
  size_t ahead_unknown = 0;  // of these, before one like it had ended
};

/// Runs the stream behind `waits` until that begins. `asks` belong to the waiting one, then to the
/// stream: one that takes kUsual, and one that takes about a tenth of it.
Stream play(sim::Random& random, Cluster& cluster, const std::vector<Ask>& asks,
            const std::vector<uint32_t>& defs, UnitId waits) {
  cluster.submit(asks, defs);
  std::map<UnitId, Time> ends;
  Stream stream;
  std::vector<bool> is_known(asks.size());
  while (stream.began < 0) {
    for (UnitId unit : cluster.schedule_all()) {
      if (unit == waits) stream.began = cluster.now;
      bool is_ahead = unit > waits && stream.began < 0;
      stream.ahead += is_ahead;
      stream.ahead_unknown += is_ahead && !is_known[defs[unit]];
      Time usual = defs[unit] == 2 ? kUsual / 10 : kUsual;
      ends[unit] = cluster.now + usual / 2 + random.below(uint32_t(usual));
      if (unit < waits) stream.last_of_first = std::max(stream.last_of_first, ends[unit]);
    }
    if (stream.began >= 0) break;
    auto next = std::min_element(ends.begin(), ends.end(),
                                 [](const auto& a, const auto& b) { return a.second < b.second; });
    REQUIRE(next != ends.end());
    Time began = cluster.run().units[next->first].assigned;
    cluster.now = next->second;
    cluster.finish(next->first, cluster.now - began);
    is_known[defs[next->first]] = true;
    ends.erase(next);
  }
  return stream;
}

}  // namespace

TEST_CASE("a wide gang does not starve behind small tasks, and these do not wait idly for it") {
  size_t beside = 0;
  for (uint64_t seed = 1; seed <= 100; seed++) {
    INFO("seed " << seed);
    sim::Random random(seed);
    Cluster cluster;
    for (int i = 0; i < 4; i++) cluster.join(2, 0, "");
    // Six of eight CPUs at once, behind slow tasks and two quick ones.
    std::vector<uint32_t> defs{1, 1, 1, 2, 1, 1, 2, 1, 0};
    for (int i = 0; i < 200; i++) defs.push_back(1 + random.below(2));
    Stream stream =
        play(random, cluster, {{1, 0, 6, 0, 0}, {1, 0, 1, 0, 0}, {1, 0, 1, 0, 0}}, defs, 8);
    // A task may start meanwhile if it is expected to end before the gang can start; it may take
    // half as long again.
    CHECK(stream.began <= stream.last_of_first + 3 * kUsual / 2);
    beside += stream.ahead;
  }
  CHECK(beside > 100);
}

TEST_CASE("a wide task of one worker does not starve behind narrow ones either") {
  size_t beside = 0;
  for (uint64_t seed = 1; seed <= 100; seed++) {
    INFO("seed " << seed);
    sim::Random random(seed);
    Cluster cluster;
    cluster.join(8, 0, "");
    cluster.join(2, 0, "");
    // All eight CPUs of the larger worker, behind ten tasks that fill both.
    std::vector<uint32_t> defs{1, 2, 1, 1, 2, 1, 1, 2, 1, 1, 0};
    for (int i = 0; i < 300; i++) defs.push_back(1 + random.below(2));
    Stream stream = play(random, cluster, {{8}, {1}, {1}}, defs, 10);
    CHECK(stream.began <= stream.last_of_first + 3 * kUsual / 2);
    beside += stream.ahead;
  }
  CHECK(beside > 100);
}

TEST_CASE("requests for several whole GPUs do not starve behind requests for one") {
  size_t beside = 0;
  for (uint64_t seed = 1; seed <= 100; seed++) {
    INFO("seed " << seed);
    sim::Random random(seed);
    Cluster cluster;
    cluster.join(16, 4, "");
    std::vector<uint32_t> defs{1, 1, 2, 1, 0};
    for (int i = 0; i < 200; i++) defs.push_back(1 + random.below(2));
    Stream stream = play(random, cluster, {{1, 4}, {1, 1}, {1, 1}}, defs, 4);
    CHECK(stream.began <= stream.last_of_first + 3 * kUsual / 2);
    beside += stream.ahead;
  }
  CHECK(beside > 50);
}

TEST_CASE("a task that fits next to a waiting one begins, whatever its duration") {
  for (uint64_t seed = 1; seed <= 20; seed++) {
    sim::Random random(seed);
    Cluster cluster;
    cluster.join(4, 1, "");
    // The GPU is busy; the task that waits for it leaves three CPUs to the stream, whose durations
    // are unknown.
    Stream stream = play(random, cluster, {{1, 1}, {1, 1}, {1}, {1}}, {1, 0, 3, 3, 3, 3, 3, 3}, 1);
    CHECK(stream.began == stream.last_of_first);
    CHECK(stream.ahead_unknown >= 2);
  }
}

TEST_CASE("if several tasks wait, each gets its reservation") {
  Cluster cluster;
  cluster.join(2, 0, "", 1000);
  cluster.join(4, 0, "");
  // The first one waits for a licence that is held for a very long time, the second for all of the
  // larger worker.
  constexpr UnitId kForLicence = 3, kWide = 4;
  cluster.submit({{1, 0, 1, 0, 1000}, {4}, {1}}, {0, 2, 2, 0, 1, 2, 2, 2, 2, 2, 2, 2, 2});
  cluster.schedule_all();
  REQUIRE(cluster.is_ready(kWide));
  for (UnitId unit : {1u, 2u}) {
    cluster.now += 10;
    cluster.finish(unit, 5000);
    cluster.schedule_all();
  }
  CHECK(cluster.is_running(kWide));
  CHECK(cluster.is_ready(kForLicence));
}

TEST_CASE("no task waits for the reservation of one that needs what a service holds") {
  Cluster cluster;
  cluster.join(4, 0, "");
  cluster.feed(GpusFound{{{0, "GPU-0", "A", "", 80, -1, false}}});
  Plan plan;
  plan.defs.resize(3);
  for (TaskDef& def : plan.defs) def.name = "t";
  plan.defs[0].kind = TaskKind::service;
  plan.defs[0].resources.gpus_milli = 1000;
  plan.defs[1].resources.gpus_milli = 1000;
  plan.defs[1].resources.cpus_milli = 0;
  plan.defs[2].resources.cpus_milli = 1000;
  for (uint32_t def : {0u, 1u, 2u, 2u, 2u, 2u}) {
    TaskNode& node = plan.nodes.emplace_back();
    node.name = "n" + std::to_string(plan.nodes.size());
    node.def = def;
    node.args = Value::list({});
  }
  RunSubmitted e;
  e.run = "r";
  e.plan = std::make_shared<const Plan>(std::move(plan));
  cluster.feed(e);
  for (UnitId unit = 0; unit < 6; unit++) cluster.resolve(unit);
  cluster.schedule_all();
  CHECK(cluster.is_ready(1));
  for (UnitId unit : {0u, 2u, 3u, 4u, 5u}) CHECK(cluster.is_running(unit));
}
