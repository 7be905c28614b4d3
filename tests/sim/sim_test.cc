// Seeds of simulated worlds. FLOW_SIM_SEED=n plays one, FLOW_SIM_COUNT=n that many from there.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "tests/sim/simulation.hpp"

namespace {

constexpr uint64_t kSeeds = 300;

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

}  // namespace

TEST_CASE("whatever the weather, each run comes to the outcome of a calm day") {
  using flow::sim::Simulation;
  bool one = std::getenv("FLOW_SIM_SEED") != nullptr;
  uint64_t first = number_from("FLOW_SIM_SEED", 1);
  uint64_t count = number_from("FLOW_SIM_COUNT", one ? 1 : kSeeds);
  size_t crashes = 0, losses = 0, away = 0, adopted = 0, gangs = 0;
  for (uint64_t seed = first; seed < first + count; seed++) {
    INFO("play it again with FLOW_SIM_SEED=" << seed);
    Simulation calm(seed, {false, false, false, false});
    REQUIRE(calm.run() == "");
    Simulation rough(seed, {});
    REQUIRE(rough.run() == "");
    for (const auto& [id, outcome] : calm.outcomes()) {
      const auto& other = rough.outcomes().at(id);
      CHECK(flow::core::status_name(other.status) ==
            std::string(flow::core::status_name(outcome.status)));
      for (const auto& [name, unit] : outcome.units) {
        INFO(id << ' ' << name);
        REQUIRE(other.units.contains(name));
        CHECK(flow::core::status_name(other.units.at(name).first) ==
              std::string(flow::core::status_name(unit.first)));
        CHECK(other.units.at(name).second.hex() == unit.second.hex());
      }
      CHECK(other.units.size() == outcome.units.size());
      CHECK(other.result.hex() == outcome.result.hex());
    }
    crashes += rough.crashes();
    losses += rough.losses();
    away += rough.away();
    adopted += rough.adopted();
    gangs += rough.gangs();
  }
  if (one) return;
  CHECK(crashes > 0);
  CHECK(losses > 0);
  CHECK(away > 100);
  CHECK(adopted > 100);
  CHECK(gangs > 100);
}
