#include "engine/api/nested_runs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>
#include <vector>

#include "engine/core/gangs.hpp"

namespace flow {

namespace {

constexpr int64_t kMilli = 1000;

/// Capacity of a worker, or its remainder.
struct WorkerResources {
  int64_t cpus_milli = 0, memory_bytes = 0, gpus_milli = 0;
};

std::optional<core::UnitId> find_unit(const core::State& state, const OuterAttempt& outer) {
  auto run = state.runs.find(outer.run);
  if (run == state.runs.end()) return std::nullopt;
  for (core::UnitId unit = 0; unit < run->second.units.size(); unit++) {
    const core::Unit& u = run->second.units[unit];
    if (u.phase == core::Phase::running && u.attempts == outer.attempt &&
        InputResolver::unit_name(run->second, unit) == outer.task)
      return unit;
  }
  return std::nullopt;
}

std::vector<WorkerResources> worker_resources_of(const core::State& state) {
  std::vector<WorkerResources> all;
  for (const core::WorkerState& worker : state.workers) {
    if (worker.is_lost()) {
      all.emplace_back();
      continue;
    }
    all.push_back({worker.info.cpus_milli, worker.info.memory_bytes,
                   static_cast<int64_t>(worker.info.gpus.size()) * kMilli});
  }
  return all;
}

void subtract_held(const core::State& state, const core::RunId& id, core::UnitId unit,
                   std::vector<WorkerResources>& free) {
  const core::Run& run = state.runs.at(id);
  core::SchedulingClass held = core::held_by(state, run, unit);
  const TaskDef* def = InputResolver::def_of(run, unit);
  core::for_each_rank(run.units[unit], [&](core::WorkerId worker, const auto&) {
    if (worker >= free.size()) return;
    free[worker].cpus_milli -= held.cpus_milli;
    free[worker].memory_bytes -= held.memory_bytes;
    if (def != nullptr) free[worker].gpus_milli -= core::resources_of(run, unit).gpus_milli;
  });
}

/// The first task that fits no worker after the remaining tasks have ended, although it fits an
/// empty worker.
const TaskDef* find_starved(const Plan& plan, const std::vector<WorkerResources>& all,
                            const std::vector<WorkerResources>& free) {
  int64_t most_milli = 0;
  for (const WorkerResources& worker : all) most_milli = std::max(most_milli, worker.cpus_milli);
  auto has_space = [&](const std::vector<WorkerResources>& workers, const TaskDef& def) {
    bool takes_slots = def.kind != TaskKind::service;
    int64_t cpus = takes_slots ? std::min<int64_t>(def.resources.cpus_milli, most_milli) : 0;
    return std::any_of(workers.begin(), workers.end(), [&](const WorkerResources& worker) {
      return worker.cpus_milli >= cpus && worker.memory_bytes >= def.resources.memory_bytes &&
             worker.gpus_milli >= def.resources.gpus_milli;
    });
  };
  std::set<uint32_t> used;
  for (const TaskNode& node : plan.nodes) {
    if (node.kind == NodeKind::when || node.def >= plan.defs.size()) continue;
    used.insert(node.def);
    if (plan.defs[node.def].kind != TaskKind::dynamic) continue;
    for (uint32_t def = 0; def < plan.defs.size(); def++)
      used.insert(def);  // a dynamic task may call any task
  }
  for (uint32_t number : used) {
    const TaskDef& def = plan.defs[number];
    if (!has_space(free, def) && has_space(all, def)) return &def;
  }
  return nullptr;
}

}  // namespace

std::optional<OuterAttempt> outer_attempt_of(const EnvironmentVariables& environment) {
  OuterAttempt outer;
  std::string_view attempt;
  for (const auto& [name, value] : environment) {
    if (name == "FLOW_RUN") outer.run = value;
    if (name == "FLOW_TASK") outer.task = value;
    if (name == "FLOW_ATTEMPT") attempt = value;
  }
  auto [end, error] =
      std::from_chars(attempt.data(), attempt.data() + attempt.size(), outer.attempt);
  bool ok = error == std::errc() && end == attempt.data() + attempt.size() && !outer.run.empty() &&
            !outer.task.empty();
  return ok ? std::optional(std::move(outer)) : std::nullopt;
}

Result<NestedRuns::Hold> NestedRuns::check(EngineLoop& engine_loop, const core::RunId& id,
                                           std::shared_ptr<const Plan> plan,
                                           const EnvironmentVariables& environment) {
  auto outer = outer_attempt_of(environment);
  if (!outer || engine_loop.parts().options.requested_nodes)
    return Hold();  // more workers may join
  Hold hold(mutex_);
  const TaskDef* starved = nullptr;
  bool is_nested = false;
  double held_cpus = 0, all_cpus = 0;
  engine_loop.inspect([&](const core::State& state, InputResolver&) {
    auto unit = find_unit(state, *outer);
    is_nested = unit.has_value();
    if (!is_nested) return;
    std::erase_if(runs_, [&](const auto& entry) {
      auto run = state.runs.find(entry.first);
      return run == state.runs.end() || core::is_final(run->second.status);
    });
    std::set<std::pair<core::RunId, core::UnitId>> waiting{{outer->run, *unit}};
    for (const auto& [nested, entry] : runs_) {
      if (auto other = find_unit(state, entry.outer)) waiting.emplace(entry.outer.run, *other);
    }
    std::vector<WorkerResources> all = worker_resources_of(state), free = all;
    for (const auto& [run, each] : waiting) subtract_held(state, run, each, free);
    for (size_t i = 0; i < all.size(); i++) {
      all_cpus += static_cast<double>(all[i].cpus_milli) / kMilli;
      held_cpus += static_cast<double>(all[i].cpus_milli - free[i].cpus_milli) / kMilli;
    }
    starved = find_starved(*plan, all, free);
    for (const auto& [nested, entry] : runs_) {
      if (starved == nullptr) starved = find_starved(*entry.plan, all, free);
    }
  });
  if (!is_nested) return Hold();
  if (starved != nullptr)
    return user_error(fmt::format(
        "this run was started by the task `{}` of the run {}, on the same state: tasks that wait "
        "for nested runs hold {} of {} CPUs until these end, and the remaining resources are too "
        "few for `{}`, so both would wait forever. Give the outer flow more CPUs (`--jobs`), or "
        "this run its own state (`--state DIR`)",
        outer->task, outer->run, held_cpus, all_cpus, starved->name));
  runs_[id] = {std::move(*outer), std::move(plan)};
  return Result<Hold>(std::move(hold));
}

}  // namespace flow
