// Compares the reasons that the units of each run share with those of each unit alone.
#pragma once
#include <catch2/catch.hpp>

#include "engine/sched/wait_explainer.hpp"

namespace flow::core {

inline void check_shared_reasons(const State& state) {
  for (const auto& [id, run] : state.runs) {
    WaitExplainer waits(state, id);
    for (UnitId unit = 0; unit < run.units.size(); unit++) {
      INFO("unit " << unit << " of " << id);
      REQUIRE(waits.explain(unit) == explain_wait(state, id, unit));
    }
  }
}

}  // namespace flow::core
