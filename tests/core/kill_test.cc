// A second interrupt kills the running attempts of a run.
#include <catch2/catch.hpp>

#include "engine/core/gangs.hpp"

using namespace flow;
using namespace flow::core;

TEST_CASE("a kill reaches every connected worker that has a rank") {
  State state;
  state.workers.resize(4);
  for (WorkerState& worker : state.workers) worker.is_up = true;
  state.workers[3].is_up = false;
  Run& run = state.runs["r"];
  run.id = RunId("r");
  run.units.resize(3);
  Unit& gang = run.units[1];
  gang.phase = Phase::running;
  gang.attempts = 2;
  gang.epoch = fencing_token(1, 0);
  gang.worker = 1;
  auto detail = std::make_shared<UnitDetail>();
  for (WorkerId worker : {1, 2, 3}) {
    Placement& rank = detail->others.emplace_back();
    rank.worker = worker;
  }
  gang.detail = detail;
  run.units[2].phase = Phase::ready;

  std::vector<std::pair<AttemptId, WorkerId>> killed;
  for (const Command& command : kill_commands(state, "r")) {
    const auto& stop = std::get<StopAttempt>(command);
    CHECK(stop.kill);
    killed.emplace_back(stop.id, stop.worker);
  }
  const AttemptId id{"r", 1, 2, fencing_token(1, 0)};
  CHECK(killed == std::vector<std::pair<AttemptId, WorkerId>>{{id, 1}, {id, 2}});
  CHECK(kill_commands(state, "none").empty());
}
