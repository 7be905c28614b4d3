#include "engine/runs/machine_use.hpp"

#include <algorithm>

#include "engine/runs/attempt_history.hpp"

namespace flow {

namespace {

constexpr double kMilli = 1000;
constexpr int64_t kUsPerMs = 1000;

/// The part of each of its GPUs that a task with these resources holds: 0 to 1.
double part_of(const Resources& resources) {
  return std::min<int32_t>(resources.gpus_milli, kWholeGpuMilli) / kMilli;
}

}  // namespace

Status add_use(const Store& store, const LoadedRun& loaded, int64_t until, bool reported,
               MachineUse& use) {
  const core::Run& run = *loaded.run;
  auto attempts = attempts_of(store, *loaded.state, run);
  FLOW_TRY(attempts);
  auto add = [&](const TimeSpan& waited, const TimeSpan& whole, bool wants_gpus) {
    if (reported) use.worked.push_back(whole);
    if (wants_gpus) use.wanted.push_back(waited);
  };
  for (const auto& [unit, rows] : *attempts) {
    if (core::def_of(run, unit) == nullptr) continue;
    const Resources& resources = core::resources_of(run, unit);
    for (const AttemptRow& row : rows) {
      int64_t ended = row.outcome == "running" ? until : row.ended;
      int64_t ready = row.assigned - std::max<int64_t>(row.queue_us, 0) / kUsPerMs;
      add({ready, row.assigned}, {ready, ended}, resources.gpus_milli > 0);
      double gpus = static_cast<double>(row.gpus.size()) * row.ranks * part_of(resources);
      if (gpus > 0) use.held.push_back({{row.assigned, ended}, gpus});
    }
  }
  for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
    const core::Unit& u = run.units[unit];
    if (u.phase != core::Phase::ready || u.ready <= 0 || core::def_of(run, unit) == nullptr)
      continue;
    TimeSpan waits{u.ready, until};
    add(waits, waits, core::resources_of(run, unit).gpus_milli > 0);
  }
  return {};
}

}  // namespace flow
