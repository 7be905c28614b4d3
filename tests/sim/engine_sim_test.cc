// Seeds of worlds around the product's engine loop. FLOW_SIM_SEED=n plays one and prints its trace,
// FLOW_SIM_SEEDS=n plays that many.
#include <catch2/catch.hpp>
#include <cstdio>
#include <map>
#include <string>

#include "tests/sim/engine_simulation.hpp"
#include "tests/sim/seeds.hpp"

namespace {

using flow::sim::Cast;
using flow::sim::EngineSimulation;
using flow::sim::FaultKind;

#ifdef __OPTIMIZE__
constexpr uint64_t kEngineSeeds = 2'500;
#else
constexpr uint64_t kEngineSeeds = 300;
#endif
constexpr uint64_t kSeedsPerContest = 50;  // a contest takes longer
constexpr uint64_t kSeedsPerRollover = 4;
constexpr uint64_t kSharePercent = 30;  // of the seeds, at least, that have each fault

/// What all seeds had, added up.
struct Totals {
  uint64_t seeds = 0, steps = 0;
  uint64_t with_disk = 0, with_crash = 0, with_partition = 0, with_all = 0;  // seeds
  uint64_t with_lost_result = 0, recomputations = 0;
  uint64_t runs = 0, compared = 0, waiting_gangs = 0;
  flow::sim::Seen seen;
  flow::sim::SeenRollovers rollovers;

  void add(const EngineSimulation& simulation) {
    seeds++;
    steps += simulation.steps();
    bool has_disk = simulation.struck(FaultKind::disk) > 0;
    bool has_crash = simulation.struck(FaultKind::crash) > 0;
    bool has_partition = simulation.struck(FaultKind::partition) > 0;
    with_disk += has_disk;
    with_crash += has_crash;
    with_partition += has_partition;
    with_all += has_disk && has_crash && has_partition;
    with_lost_result += simulation.has_lost_result();
    recomputations += simulation.recomputations();
    waiting_gangs += simulation.waiting_gangs();
    seen.add(simulation.seen());
    rollovers.add(simulation.fronts().seen());
  }
  unsigned long long percent(uint64_t some) const { return 100 * some / seeds; }
  void print() const {
    std::printf(
        "%llu seeds, %llu steps: a failed or cut write in %llu%%, a crash in %llu%%, a partition "
        "in %llu%%, all three in %llu%%\n",
        static_cast<unsigned long long>(seeds), static_cast<unsigned long long>(steps),
        percent(with_disk), percent(with_crash), percent(with_partition), percent(with_all));
    std::printf(
        "%llu runs, %llu compared with a calm day; attempts: %zu on workers, %zu of gangs, %zu "
        "adopted; %zu workers lost, %zu drained; %zu GPUs failed; %zu gangs grown; %zu dynamic "
        "calls; %zu replicas ready, %zu services restarted, %zu grown, %zu shrunk; %llu gangs "
        "waited; a result removed in "
        "%llu%%, %llu runs resumed because of it\n",
        static_cast<unsigned long long>(runs), static_cast<unsigned long long>(compared),
        seen.remote, seen.gangs, seen.adopted, seen.losses, seen.drains, seen.gpu_faults,
        seen.resizes, seen.dynamic_calls, seen.replicas, seen.restarted, seen.grown, seen.shrunk,
        static_cast<unsigned long long>(waiting_gangs), percent(with_lost_result),
        static_cast<unsigned long long>(recomputations));
  }
};

/// Plays the seed again, which leads to the same world, and returns what happened.
std::string trace_of(uint64_t seed, Cast cast, bool is_calm) {
  EngineSimulation again(seed, cast, is_calm);
  again.keep_trace();
  (void)again.run();
  return again.trace();
}

using Outcomes = std::map<flow::core::RunId, flow::sim::Outcome>;

/// Plays the seed, and adds it up if `totals` is not null.
Outcomes play(uint64_t seed, Cast cast, bool is_calm, Totals* totals) {
  EngineSimulation simulation(seed, cast, is_calm);
  std::string problem = simulation.run();
  if (!problem.empty()) {
    std::printf("%s", trace_of(seed, cast, is_calm).c_str());
    FAIL("FLOW_SIM_SEED=" << seed << (is_calm ? " on a calm day, " : ", ") << problem);
  }
  if (totals != nullptr) totals->add(simulation);
  return simulation.outcomes();
}

/// Each run leads to the outcome that it has when nothing fails.
Totals play_all(Cast cast, const flow::sim::Seeds& seeds) {
  Totals totals;
  for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
    flow::sim::SeedOnAbort names_seed(seed);
    Outcomes calm = play(seed, cast, true, nullptr), outcomes = play(seed, cast, false, &totals);
    for (const auto& [run, outcome] : outcomes) {
      totals.runs++;
      totals.compared += !outcome.depends_on_order && !calm.at(run).depends_on_order;
      std::string wrong = difference(calm.at(run), outcome);
      if (wrong.empty()) continue;
      std::printf("%s", trace_of(seed, cast, false).c_str());
      FAIL("FLOW_SIM_SEED=" << seed << ", " << run
                            << " has another outcome than on a calm day: " << wrong);
    }
  }
  totals.print();
  if (seeds.is_one) std::printf("%s", trace_of(seeds.first, cast, false).c_str());
  return totals;
}

}  // namespace

TEST_CASE("the engine loop keeps its promises whatever fails", "[engine]") {
  flow::sim::Seeds seeds = flow::sim::seeds_to_play(kEngineSeeds);
  Totals totals = play_all(Cast::anything, seeds);
  if (seeds.is_one) return;
  CHECK(totals.percent(totals.with_all) >= kSharePercent);
  CHECK(totals.compared > totals.runs / 2);
  CHECK(totals.seen.remote > totals.seeds);
  CHECK(totals.seen.gangs > totals.seeds / 40);
  CHECK(totals.seen.adopted > totals.seeds / 40);
  CHECK(totals.seen.losses > totals.seeds / 40);
  CHECK(totals.seen.drains > totals.seeds / 40);
  CHECK(totals.seen.gpu_faults > totals.seeds / 40);
  CHECK(totals.seen.dynamic_calls > totals.seeds / 40);
  CHECK(totals.seen.replicas > totals.seeds / 4);
  CHECK(totals.seen.restarted > totals.seeds / 40);
  CHECK(totals.seen.grown > totals.seeds / 40);
  CHECK(totals.seen.shrunk > totals.seeds / 40);
  CHECK(totals.seen.resizes > 0);
  CHECK(totals.with_lost_result > totals.seeds / 40);
  CHECK(totals.recomputations > 0);
}

TEST_CASE("a served name always has one version with all the traffic in the end", "[engine]") {
  flow::sim::Seeds seeds = flow::sim::seeds_to_play(kEngineSeeds, kSeedsPerRollover);
  Totals totals = play_all(Cast::rollover, seeds);
  if (seeds.is_one) return;
  std::printf("%llu rollovers done, %llu rolled back, %llu interrupted, %llu taken over alone\n",
              static_cast<unsigned long long>(totals.rollovers.done),
              static_cast<unsigned long long>(totals.rollovers.reverted),
              static_cast<unsigned long long>(totals.rollovers.interrupted),
              static_cast<unsigned long long>(totals.rollovers.alone));
  std::printf("%llu steps passed by a gate, %llu refused\n",
              static_cast<unsigned long long>(totals.rollovers.passed),
              static_cast<unsigned long long>(totals.rollovers.refused));
  CHECK(totals.rollovers.done > totals.seeds / 4);
  CHECK(totals.rollovers.reverted > totals.seeds / 20);
  CHECK(totals.rollovers.interrupted > totals.seeds / 20);
  CHECK(totals.rollovers.alone > totals.seeds / 40);
  CHECK(totals.rollovers.passed > totals.seeds / 20);
  CHECK(totals.rollovers.refused > totals.seeds / 40);
}

TEST_CASE("three gangs on four workers all start and end", "[engine]") {
  flow::sim::Seeds seeds = flow::sim::seeds_to_play(kEngineSeeds, kSeedsPerContest);
  Totals totals = play_all(Cast::contest, seeds);
  if (seeds.is_one) return;
  CHECK(totals.seen.gangs > 2 * totals.seeds);
  CHECK(totals.waiting_gangs > 2 * totals.seeds);
  CHECK(totals.seen.adopted > totals.seeds / 40);
  CHECK(totals.seen.losses > totals.seeds / 40);
  CHECK(totals.seen.drains > totals.seeds / 40);
}
