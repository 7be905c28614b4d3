// Seeds of simulated worlds. FLOW_SIM_SEED=n plays one, FLOW_SIM_COUNT=n that many from there.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "tests/sim/simulation.hpp"

namespace {

constexpr uint64_t kSeeds = 300, kContests = 16;

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

bool is_one() { return std::getenv("FLOW_SIM_SEED") != nullptr; }

using flow::sim::Cast;
using flow::sim::Simulation;

/// What happened in the rough weather of all seeds.
struct Seen {
  size_t crashes = 0, losses = 0, drains = 0, away = 0, adopted = 0, gangs = 0, waits = 0,
         grown = 0;
};

/// Each run comes to the outcome that it has on a calm day.
Seen play(Cast cast, uint64_t seeds) {
  uint64_t first = number_from("FLOW_SIM_SEED", 1);
  uint64_t count = number_from("FLOW_SIM_COUNT", is_one() ? 1 : seeds);
  Seen seen;
  for (uint64_t seed = first; seed < first + count; seed++) {
    INFO("play it again with FLOW_SIM_SEED=" << seed);
    Simulation calm(seed, {false, false, false, false}, cast);
    REQUIRE(calm.run() == "");
    Simulation rough(seed, {}, cast);
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
    seen.crashes += rough.crashes();
    seen.losses += rough.losses();
    seen.drains += rough.drains();
    seen.away += rough.away();
    seen.adopted += rough.adopted();
    seen.gangs += rough.gangs();
    seen.waits += rough.waits();
    seen.grown += rough.grown();
  }
  return seen;
}

}  // namespace

TEST_CASE("whatever the weather, each run comes to the outcome of a calm day") {
  Seen seen = play(Cast::anything, kSeeds);
  if (is_one()) return;
  CHECK(seen.crashes > 0);
  CHECK(seen.losses > 0);
  CHECK(seen.drains > 0);
  CHECK(seen.away > 100);
  CHECK(seen.adopted > 100);
  CHECK(seen.gangs > 100);
}

TEST_CASE("three gangs on four nodes all come to run, and to their end") {
  Seen seen = play(Cast::gangs, kContests);
  if (is_one()) return;
  CHECK(seen.crashes > 0);
  CHECK(seen.losses > 0);
  CHECK(seen.drains > 0);
  CHECK(seen.adopted > 100);
  CHECK(seen.gangs > 100);
  CHECK(seen.waits > 100);
  CHECK(seen.grown > 2);
}
