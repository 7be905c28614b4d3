// What the newest attempt of each unit used.
#include <algorithm>

#include "engine/core/transition.hpp"

namespace flow::core {

namespace {

constexpr float kUsPerSecond = 1e6F;
constexpr double kMsPerSecond = 1000;
constexpr double kMilli = 1000;

/// Below 0: unknown.
double exact(int64_t figure, double unit) {
  return figure < 0 ? -1 : static_cast<double>(figure) / unit;
}

float seconds_of(int64_t us) { return us < 0 ? -1 : static_cast<float>(us) / kUsPerSecond; }

}  // namespace

// Called when the unit's attempt is assigned: nothing else is known of it yet.
void Transition::begin_usage(Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  if (run.times.size() <= unit) {
    if (run.times.capacity() <= unit)
      run.times.reserve(std::max(run.units.size(), 2 * run.times.capacity()));
    run.times.resize(unit + 1);
  }
  run.times[unit] = {};
  if (u.ready > 0)
    run.times[unit].queue_s = static_cast<float>((u.assigned - u.ready) / kMsPerSecond);
  run.totals.erase(unit);
}

void Transition::note_usage(const AttemptId& id, const AttemptUsage& usage) {
  Run& r = run(id.run);
  reported_run_ = &r;
  reported_unit_ = id.unit;
  reported_ = usage;
  if (usage.moved_bytes >= 0) r.knows_traffic = true;
  if (r.times.size() <= id.unit) r.times.resize(id.unit + 1);
  AttemptTimes& times = r.times[id.unit];
  times.stage_s = seconds_of(usage.stage_us);
  times.commit_s = seconds_of(usage.commit_us);
  times.cpu_s = seconds_of(usage.cpu_us);
  bool has_gpus = usage.gpu_used_us >= 0 || usage.gpu_measured_us >= 0 || usage.gpu_energy_mj >= 0;
  bool has_totals = usage.peak_memory >= 0 || usage.read_bytes >= 0 || usage.written_bytes >= 0;
  if (!has_gpus && !has_totals) return;
  AttemptTotals& totals = r.totals[id.unit];
  totals.peak_memory = usage.peak_memory;
  totals.read_bytes = usage.read_bytes;
  totals.written_bytes = usage.written_bytes;
  totals.gpu_used_s = exact(usage.gpu_used_us, kUsPerSecond);
  totals.gpu_measured_s = exact(usage.gpu_measured_us, kUsPerSecond);
  totals.gpu_energy_j = exact(usage.gpu_energy_mj, kMilli);
}

// Called before the unit leaves its phase: at each end of an attempt, also of one that is lost, and
// for those that ended with the former engine.
void Transition::note_gpus_held(Run& run, UnitId unit, Time until) {
  const Resources& resources = resources_of(run, unit);
  if (resources.gpus_milli <= 0) return;
  const Unit& u = run.units[unit];
  size_t ranks = u.detail ? u.detail->others.size() + 1 : 1;
  double held = static_cast<double>(ranks) * resources.gpus_milli / kMilli;
  run.totals[unit].gpu_s =
      held * static_cast<double>(std::max<Time>(until - u.assigned, 0)) / kMsPerSecond;
}

AttemptTimes times_of(const Run& run, UnitId unit) {
  bool is_known = unit < run.times.size() && !run.units[unit].cached;
  return is_known ? run.times[unit] : AttemptTimes{};
}

AttemptTotals totals_of(const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  if (u.cached) return {};
  auto found = run.totals.find(unit);
  AttemptTotals totals = found == run.totals.end() ? AttemptTotals{} : found->second;
  bool has_ended = u.attempts > 0 && u.phase != Phase::running && def_of(run, unit) != nullptr;
  bool holds_none = has_ended && resources_of(run, unit).gpus_milli == 0;
  if (holds_none && times_of(run, unit) != AttemptTimes{})
    totals.gpu_s = totals.gpu_used_s = totals.gpu_measured_s = totals.gpu_energy_j = 0;
  return totals;
}

}  // namespace flow::core
