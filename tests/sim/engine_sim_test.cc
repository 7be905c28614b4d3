// Seeds of worlds around the product's engine loop. FLOW_SIM_SEED=n plays one and prints its trace,
// FLOW_SIM_SEEDS=n plays that many.
#include <catch2/catch.hpp>
#include <cstdio>
#include <string>

#include "tests/sim/engine_simulation.hpp"
#include "tests/sim/seeds.hpp"

namespace {

using flow::sim::EngineSimulation;
using flow::sim::FaultKind;

#ifdef __OPTIMIZE__
constexpr uint64_t kEngineSeeds = 2'500;
#else
constexpr uint64_t kEngineSeeds = 300;
#endif
constexpr uint64_t kSharePercent = 30;  // of the seeds, at least, that have all three faults

/// Plays the seed again, which leads to the same world, and returns what happened.
std::string trace_of(uint64_t seed) {
  EngineSimulation again(seed);
  again.keep_trace();
  (void)again.run();
  return again.trace();
}

}  // namespace

TEST_CASE("the engine loop keeps its promises whatever fails", "[engine]") {
  flow::sim::Seeds seeds = flow::sim::seeds_to_play(kEngineSeeds);
  uint64_t with_disk = 0, with_crash = 0, with_partition = 0, with_all = 0, steps = 0;
  for (uint64_t seed = seeds.first; seed < seeds.first + seeds.count; seed++) {
    flow::sim::SeedOnAbort names_seed(seed);
    EngineSimulation simulation(seed);
    std::string problem = simulation.run();
    if (!problem.empty()) {
      std::printf("%s", trace_of(seed).c_str());
      FAIL("FLOW_SIM_SEED=" << seed << ", " << problem);
    }
    bool has_disk = simulation.struck(FaultKind::disk) > 0;
    bool has_crash = simulation.struck(FaultKind::crash) > 0;
    bool has_partition = simulation.struck(FaultKind::partition) > 0;
    with_disk += has_disk;
    with_crash += has_crash;
    with_partition += has_partition;
    with_all += has_disk && has_crash && has_partition;
    steps += simulation.steps();
  }
  std::printf(
      "%llu seeds, %llu steps: a failed or cut write in %llu%%, a crash in %llu%%, a partition in "
      "%llu%%, all three in %llu%%\n",
      static_cast<unsigned long long>(seeds.count), static_cast<unsigned long long>(steps),
      static_cast<unsigned long long>(100 * with_disk / seeds.count),
      static_cast<unsigned long long>(100 * with_crash / seeds.count),
      static_cast<unsigned long long>(100 * with_partition / seeds.count),
      static_cast<unsigned long long>(100 * with_all / seeds.count));
  if (seeds.is_one) return std::printf("%s", trace_of(seeds.first).c_str()), void();
  CHECK(100 * with_all >= kSharePercent * seeds.count);
}
