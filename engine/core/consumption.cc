// What the attempts of each unit held, for reports of costs and for budgets.
#include <algorithm>

#include "engine/core/gangs.hpp"
#include "engine/core/graph.hpp"
#include "engine/core/transition.hpp"

namespace flow::core {

namespace {

constexpr double kMicro = 1e6;
constexpr double kSecondMs = 1000;

double gpu_milli_of(const Resources& resources) {
  return std::min<int32_t>(resources.gpus_milli, kWholeGpuMilli);
}

const std::string& model_of(const WorkerInfo& worker, const std::string& uuid) {
  static const std::string unknown;
  auto at = find_gpu(worker.gpus, uuid);
  return at ? worker.gpus[*at].name : unknown;
}

/// Whether the newest attempt is not among those that were counted when they ended: a plain success
/// of which the unit itself says all.
bool is_uncounted_success(const Run& run, UnitId unit, const std::vector<Consumption>& counted) {
  const Unit& u = run.units[unit];
  bool is_own = !u.cached && (!u.detail || u.detail->computed_by == kNoNode);
  bool is_success = u.status == UnitStatus::succeeded && u.attempts > 0 && is_own;
  uint32_t attempts = 0;
  for (const Consumption& each : counted) attempts += each.attempts;
  return is_success && attempts < u.attempts && def_of(run, unit) != nullptr &&
         !is_service(run, unit) && !is_dynamic(run, unit);
}

Consumption plain_success(const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  const Resources& resources = resources_of(run, unit);
  Consumption used;
  used.attempts = 1;
  used.rank_ms = static_cast<double>(std::max<Time>(u.finished - u.started, 0));
  used.cpu_milli_ms = resources.cpus_milli * used.rank_ms;
  used.memory_byte_ms = static_cast<double>(resources.memory_bytes) * used.rank_ms;
  if (resources.gpus_milli > 0)  // of a run of an older flow, which did not count it
    for_each_rank(u, [&](WorkerId, const std::vector<std::string>& gpus) {
      add_gpu_time(used.gpus, "",
                   static_cast<double>(gpus.size()) * gpu_milli_of(resources) * used.rank_ms);
    });
  float cpu_s = unit < run.times.size() ? run.times[unit].cpu_s : -1;
  if (cpu_s < 0) used.unmeasured = 1;
  if (cpu_s >= 0) used.cpu_used_us = static_cast<double>(cpu_s) * kMicro;
  return used;
}

/// Of all ranks, where the first one is counted.
void add_gpu_use(const Run& run, UnitId unit, Consumption& to) {
  auto found = run.totals.find(unit);
  if (found == run.totals.end()) return;
  const AttemptTotals& totals = found->second;
  constexpr double kMilliMs = 1000 * kSecondMs;  // a GPU for a second
  to.gpu_used_milli_ms = std::max(totals.gpu_used_s, 0.0) * kMilliMs;
  to.gpu_measured_milli_ms = std::max(totals.gpu_measured_s, 0.0) * kMilliMs;
  to.gpu_energy_mj = std::max(totals.gpu_energy_j, 0.0) * 1000;
}

/// What the end of the attempt says of all its ranks. The time in which they connect is in that of
/// staging, which is therefore less by what they waited.
void add_reported(const Resources& resources, size_t gpus, const AttemptUsage& reported,
                  std::vector<Consumption>& parts) {
  Consumption& first = parts.front();
  first.moved_bytes = static_cast<double>(std::max<int64_t>(reported.moved_bytes, 0));
  bool is_known = reported.connect_wait_us >= 0 || reported.leave_wait_us >= 0;
  if (gpus == 0 || !is_known) return;
  double milli_ms_of_us = static_cast<double>(gpus) * gpu_milli_of(resources) / kSecondMs;
  double connecting =
      static_cast<double>(std::max<int64_t>(reported.connect_wait_us, 0)) * milli_ms_of_us;
  first.gpu_rank_milli_ms =
      connecting +
      static_cast<double>(std::max<int64_t>(reported.leave_wait_us, 0)) * milli_ms_of_us;
  for (Consumption& part : parts) {
    double less = std::min(part.gpu_stage_milli_ms, connecting);
    part.gpu_stage_milli_ms -= less;
    connecting -= less;
  }
}

bool is_simple(const Run& run, UnitId unit, const Resources& resources) {
  return !resources.is_gang() && resources.gpus_milli == 0 && !is_service(run, unit) &&
         !is_dynamic(run, unit);
}

/// Most units of a large run end so, and need no entry of their own.
bool is_plain(const Run& run, UnitId unit, const std::vector<Consumption>& used) {
  const Resources& resources = resources_of(run, unit);
  bool has_no_label = used.size() == 1 && used[0].labels.empty();
  return has_no_label && is_simple(run, unit, resources) && used[0].moved_bytes == 0 &&
         used[0].cpu_milli_ms == resources.cpus_milli * used[0].rank_ms &&
         used[0].memory_byte_ms == static_cast<double>(resources.memory_bytes) * used[0].rank_ms;
}

/// The same without the consumption, which costs more; false if it has to be computed to know. A
/// unit without details that asks for no more than its worker and its run have holds what it asks
/// for.
bool is_plain_at_once(const State& state, const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  if (run.budget || u.detail) return false;
  const TaskDef& def = *def_of(run, unit);
  const Resources& asked = def.resources;
  bool is_simple = def.kind != TaskKind::service && def.kind != TaskKind::dynamic &&
                   !asked.is_gang() && asked.gpus_milli == 0;
  const WorkerInfo& worker = state.workers.at(u.worker).info;
  if (!is_simple || !worker.labels.empty()) return false;
  bool has_slots = run.jobs <= 0 || asked.cpus_milli <= int64_t{run.jobs} * 1000;
  return has_slots && asked.cpus_milli >= 0 && asked.cpus_milli <= worker.cpus_milli &&
         asked.memory_bytes >= 0 && asked.memory_bytes <= worker.memory_bytes;
}

}  // namespace

std::vector<Consumption> consumption_of_attempt(const State& state, const Run& run, UnitId unit,
                                                AttemptEnding outcome, Time until) {
  const Unit& u = run.units[unit];
  const Resources& resources = resources_of(run, unit);
  AttemptTimes times = unit < run.times.size() ? run.times[unit] : AttemptTimes{};
  double held_ms = static_cast<double>(std::max<Time>(until - u.assigned, 0));
  double stage_ms = std::clamp(static_cast<double>(times.stage_s) * kSecondMs, 0.0, held_ms);
  std::vector<Consumption> parts;
  for_each_rank(u, [&](WorkerId at, const std::vector<std::string>& gpus) {
    const WorkerInfo& worker = state.workers.at(at).info;
    SchedulingClass held = held_on(worker, run, unit);
    int32_t cpus_milli = is_service(run, unit) ? resources.cpus_milli : held.cpus_milli;
    Consumption rank;
    rank.outcome = outcome;
    rank.labels = worker.labels;
    rank.rank_ms = held_ms;
    rank.cpu_milli_ms = cpus_milli * held_ms;
    rank.memory_byte_ms = static_cast<double>(held.memory_bytes) * held_ms;
    for (const std::string& uuid : gpus) {
      add_gpu_time(rank.gpus, model_of(worker, uuid), gpu_milli_of(resources) * held_ms);
      rank.gpu_stage_milli_ms += gpu_milli_of(resources) * stage_ms;
    }
    bool is_first = parts.empty();
    if (is_first) {
      rank.attempts = 1;
      if (times.cpu_s < 0) rank.unmeasured = 1;
      if (times.cpu_s >= 0) rank.cpu_used_us = static_cast<double>(times.cpu_s) * kMicro;
      add_gpu_use(run, unit, rank);
      if (!gpus.empty() && !resources.is_gang()) rank.gpu_rank_milli_ms = 0;  // nothing to wait for
    }
    if (is_first)
      parts.push_back(std::move(rank));
    else
      merge(parts, rank);
  });
  return parts;
}

std::vector<Consumption> consumption_of(const Run& run, UnitId unit) {
  auto found = run.consumed.find(unit);
  std::vector<Consumption> all;
  if (found != run.consumed.end()) all = found->second;
  if (is_uncounted_success(run, unit, all)) merge(all, plain_success(run, unit));
  return all;
}

// Called before the unit leaves its phase.
void Transition::note_consumption(Run& run, UnitId unit, AttemptEnding outcome, bool is_result,
                                  Time until) {
  bool is_reported = reported_run_ == &run && reported_unit_ == unit;
  bool has_moved = is_reported && reported_.moved_bytes > 0;
  if (is_result && !has_moved && is_plain_at_once(state_, run, unit)) return;
  std::vector<Consumption> used = consumption_of_attempt(state_, run, unit, outcome, until);
  if (is_reported)
    add_reported(resources_of(run, unit), gpus_of(run.units[unit]).size(), reported_, used);
  spend_budget(run, unit, used, outcome);
  if (is_result && is_plain(run, unit, used)) return;
  for (const Consumption& each : used) merge(run.consumed[unit], each);
}

// Called before the unit forgets its success.
void Transition::keep_consumption(Run& run, UnitId unit) {
  std::vector<Consumption> all = consumption_of(run, unit);
  if (!all.empty()) run.consumed[unit] = std::move(all);
}

}  // namespace flow::core
