// From the core's state to what `flow show` prints.
#include "engine/runs/run_info.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "engine/base/size_units.hpp"
#include "engine/core/gangs.hpp"
#include "engine/core/rollover.hpp"
#include "engine/core/scaling.hpp"
#include "engine/core/transition.hpp"
#include "engine/sched/wait_explainer.hpp"

namespace flow {

namespace {

/// Attempts of an interrupted or a waiting task do not count as retries.
uint64_t retries_of(const core::Unit& unit) {
  if (unit.attempts < 2 || !unit.detail) return 0;
  const core::UnitDetail& detail = *unit.detail;
  uint64_t failures = uint64_t{detail.failures} + detail.ooms + detail.infra + detail.restarts;
  if (unit.status == core::UnitStatus::failed && failures > 0) failures--;  // no attempt followed
  return std::min<uint64_t>(failures, unit.attempts - 1);
}

/// The worker's name. kHeadWorkerName for the engine's own machine, and for a worker that the state
/// no longer has.
std::string worker_name(const core::State* state, core::WorkerId worker) {
  bool is_known = state != nullptr && worker > 0 && worker < state->workers.size();
  return is_known ? state->workers[worker].info.name : kHeadWorkerName;
}

TaskUsage usage_of(const core::Run& run, core::UnitId unit) {
  core::AttemptTimes times = core::times_of(run, unit);
  core::AttemptTotals totals = core::totals_of(run, unit);
  return {times.queue_s,     times.stage_s,         times.commit_s,     times.cpu_s,
          totals.gpu_s,      totals.peak_memory,    totals.read_bytes,  totals.written_bytes,
          totals.gpu_used_s, totals.gpu_measured_s, totals.gpu_energy_j};
}

}  // namespace

TaskInfo info_of_task(const core::Run& run, core::UnitId unit, const core::State* state,
                      core::WaitExplainer* waits) {
  const core::Unit& u = run.units[unit];
  TaskInfo info;
  info.name = InputResolver::unit_name(run, unit);
  info.tag = core::tag_of(run, unit);
  info.key = u.key.is_zero() ? "" : u.key.hex();
  info.status = core::status_name(u.status);
  info.attempts = u.attempts;
  info.cached = u.cached;
  info.ignored = core::is_ignored(u);
  info.started_ms = u.started;
  info.finished_ms = u.finished;
  info.url = url_of(u);
  info.usage = usage_of(run, unit);
  info.user = run.user;
  if (const TaskDef* def = InputResolver::def_of(run, unit)) info.ranks = def->resources.ranks;
  if (u.attempts > 0) {
    for (core::WorkerId worker : core::workers_of(u))
      info.worker += (info.worker.empty() ? "" : ", ") + worker_name(state, worker);
  }
  core::for_each_rank(u, [&](core::WorkerId, const std::vector<std::string>& gpus) {
    info.gpus.insert(info.gpus.end(), gpus.begin(), gpus.end());
  });
  if (u.detail && !u.detail->others.empty())  // of an elastic gang: the ranks of its newest attempt
    info.ranks = static_cast<uint32_t>(u.detail->others.size()) + 1;
  if (u.detail) {
    for (const core::FailedAttempt& failed : u.detail->failed)
      info.failed.push_back(
          {failed.attempt, worker_name(state, failed.worker), core::cause_name(failed.cause)});
    info.grew_from = u.detail->grew_from;
    info.restarts = u.detail->restarts;
    info.error = u.detail->failure.message;
    if (core::is_final(u.status) && !u.detail->failure.evidence.empty()) {
      info.error += "\n" + u.detail->failure.evidence;
    }
    if (u.status == core::UnitStatus::succeeded) info.error.clear();
  }
  if (waits != nullptr && may_wait(u)) info.waits_for = waits->explain(unit);
  return info;
}

namespace {

const char* status_of(const core::WorkerState& worker) {
  if (worker.is_lost()) return "lost";
  if (worker.is_draining) return "draining";
  return worker.is_up ? "up" : "away";
}

std::string note_of(const core::WorkerState& worker) {
  if (!core::is_set_aside(worker, 1)) return "";
  std::string note =
      fmt::format("set aside: {} different tasks in a row failed there", worker.failures.size());
  if (worker.aside_until != 0) return note + "; until " + format_time(worker.aside_until);
  return note + "; it gets one task at a time until one succeeds";
}

/// How much of each resource is in use; its users are added later.
std::vector<GpuUse> gpu_uses_of(const core::WorkerState& worker) {
  std::vector<GpuUse> uses;
  for (size_t i = 0; i < worker.info.gpus.size(); i++) {
    const core::FreeGpu& free = worker.free.gpus[i];
    GpuUse use;
    use.used = (kWholeGpuMilli - free.milli_free) / 1000.0;
    use.memory_used_bytes = worker.info.gpus[i].memory_bytes - free.memory_free_bytes;
    uses.push_back(std::move(use));
  }
  return uses;
}

void add_task(NodeInfo& node, const std::string& task, const std::vector<std::string>& gpus) {
  node.tasks.push_back(task);
  for (const std::string& uuid : gpus) {
    auto gpu = core::find_gpu(node.gpus, uuid);
    if (gpu && *gpu < node.gpu_uses.size()) node.gpu_uses[*gpu].tasks.push_back(task);
  }
}

}  // namespace

std::vector<NodeInfo> nodes_of(const core::State& state) {
  std::vector<NodeInfo> nodes;
  for (const core::WorkerState& worker : state.workers) {
    NodeInfo node;
    node.name = worker.info.name;
    node.status = status_of(worker);
    node.note = note_of(worker);
    node.cpus = worker.info.cpus_milli / 1000.0;
    if (!worker.is_lost())
      node.cpus_used = (worker.info.cpus_milli - worker.free.cpus_free_milli) / 1000.0;
    node.memory_bytes = worker.info.memory_bytes;
    node.gpus = worker.info.gpus;
    if (!worker.is_lost()) node.gpu_uses = gpu_uses_of(worker);
    node.labels = worker.info.labels;
    node.resources = numbers_of(worker.info.custom_resources);
    ResourceQuantities used = worker.info.custom_resources;
    add(used, worker.free.custom_resources, -1);
    if (!worker.is_lost()) node.resources_used = numbers_of(used);
    nodes.push_back(std::move(node));
  }
  for (const auto& [id, run] : state.runs) {
    if (run.phase_count(core::Phase::running) == 0) continue;
    for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
      const core::Unit& u = run.units[unit];
      if (u.phase != core::Phase::running) continue;
      std::string name = id + " " + core::shown_name(run, unit);
      uint32_t rank = 0;
      core::for_each_rank(u, [&](core::WorkerId worker, const auto& gpus) {
        add_task(nodes[worker], rank == 0 ? name : name + " rank " + std::to_string(rank), gpus);
        rank++;
      });
    }
  }
  return nodes;
}

RunInfo info_of_record(const RunRecord& record) {
  RunInfo info;
  info.id = record.id;
  info.name = record.name;
  info.pipeline = record.pipeline;
  info.status = record.status;
  info.directory = record.directory;
  info.script = record.script;
  info.started_ms = record.submitted;
  info.finished_ms = record.finished;
  info.counts = record.counts;
  info.retried = record.retried;
  auto params = decode_value(record.params);
  if (params.ok()) info.params = std::move(*params);
  return info;
}

namespace {

Counts counts_from(const core::RunCounts& c) {
  return {c.succeeded, c.cached, c.failed,  c.skipped, c.cancelled,
          c.pending,   c.ready,  c.running, c.waiting, c.ignored};
}

/// Whether the value of a when or of a map could not be gathered, or a condition not be read. These
/// are no tasks; but such a one is the cause of a failure.
bool is_failed_join(const core::Run& run, core::UnitId unit) {
  const core::Unit& u = run.units[unit];
  return !u.dropped && u.status == core::UnitStatus::failed && u.detail &&
         u.detail->failure.cause != core::Cause::dependency && !core::is_counted(run, unit);
}

/// Finds the group of each node, whose units are counted together.
class NodeGroups {
 public:
  explicit NodeGroups(const core::Run& run) : run_(run) {}

  size_t group_of(uint32_t node) {
    if (node == last_node_) return last_group_;  // the instances of a map follow each other
    last_node_ = node;
    std::string name = without_numbers(run_.node(node).name);
    bool is_full = names_.size() + 1 >= kCountedTasksMax && !groups_.contains(name);
    if (is_full) name.clear();
    auto [found, is_new] = groups_.try_emplace(name, names_.size());
    if (is_new) names_.push_back(std::move(name));
    return last_group_ = found->second;
  }
  const std::string& name(size_t group) const { return names_[group]; }

 private:
  const core::Run& run_;
  uint32_t last_node_ = UINT32_MAX;
  size_t last_group_ = 0;
  std::unordered_map<std::string, size_t> groups_;
  std::vector<std::string> names_;
};

}  // namespace

Counts counts_of(const core::Run& run) {
  Counts counts = counts_from(run.counts);
  // Those of the tasks, of which ignored ones are no failed units.
  if (run.failed_units == counts.failed - counts.ignored) return counts;
  for (core::UnitId unit = 0; unit < run.units.size(); unit++)
    if (is_failed_join(run, unit)) counts.failed++;
  return counts;
}

std::vector<CountedTask> counts_by_task(const core::Run& run) {
  NodeGroups groups(run);
  std::vector<core::RunCounts> counts;
  for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
    if (!core::is_counted(run, unit)) continue;
    size_t group = groups.group_of(run.units[unit].node);
    if (group == counts.size()) counts.emplace_back();
    core::count_unit(counts[group], run.units[unit], 1);
  }
  std::vector<CountedTask> tasks;
  for (size_t group = 0; group < counts.size(); group++)
    tasks.push_back({groups.name(group), counts_from(counts[group])});
  return tasks;
}

std::string status_clause(const std::string& status) {
  if (status == "succeeded" || status == "failed") return "has " + status;
  return (status == "cancelled" ? "was " : "is ") + status;
}

std::string url_of(const core::Unit& unit) {
  return unit.status == core::UnitStatus::running && unit.detail ? unit.detail->url : "";
}

std::string url_of_replicas(const core::Run& run, core::UnitId set) {
  for (core::UnitId replica : core::instances_of(run, set))
    if (std::string url = url_of(run.units[replica]); !url.empty()) return url;
  return "";
}

std::string url_of(const core::Run& run) {
  for (const core::Unit& unit : run.units)
    if (std::string url = url_of(unit); !url.empty()) return url;
  return "";
}

namespace {

/// The service's name: of replicas that of their node, of instances of a map their own.
std::string service_name(const core::Run& run, core::UnitId unit) {
  const TaskNode& node = run.node(run.units[unit].node);
  return node.kind == NodeKind::map ? core::unit_name(run, unit) : node.name;
}

ReplicaInfo replica_info(const core::Run& run, core::UnitId unit, const core::State* state) {
  const core::Unit& u = run.units[unit];
  ReplicaInfo replica;
  replica.name = core::unit_name(run, unit);
  replica.status = u.phase != core::Phase::running ? "waiting"
                   : url_of(u).empty()             ? "starting"
                                                   : "ready";
  if (u.phase != core::Phase::running) return replica;
  replica.worker = worker_name(state, u.worker);
  core::for_each_rank(u, [&](core::WorkerId, const std::vector<std::string>& gpus) {
    replica.gpus.insert(replica.gpus.end(), gpus.begin(), gpus.end());
  });
  return replica;
}

void set_replicas(const core::Run& run, core::UnitId unit, ServiceInfo& service) {
  const ServiceSpec& spec = core::def_of(run, unit)->service;
  core::UnitId set = run.unit_of(run.units[unit].node);
  bool scales = core::is_scaled_set(run, set);
  service.replicas_min = spec.replicas;
  service.replicas_max = scales ? spec.scaling.max : spec.replicas;
  service.replicas_wanted = scales ? core::replicas_in_use(run, set) : spec.replicas;
}

}  // namespace

std::vector<ServiceInfo> services_of(const core::Run& run, const core::State* state) {
  std::vector<ServiceInfo> services;
  if (core::is_final(run.status)) return services;
  for (core::UnitId unit : run.services) {
    const core::Unit& u = run.units[unit];
    bool is_parked = core::is_spare(run, unit) && u.phase != core::Phase::running;
    if (u.dropped || core::is_final(u.status) || run.instances.contains(unit) || is_parked)
      continue;
    std::string name = service_name(run, unit);
    auto known = std::ranges::find(services, name, &ServiceInfo::service);
    if (known == services.end()) {
      ServiceInfo& added = services.emplace_back();
      added.version = run.id;
      added.name = run.name;
      added.service = name;
      added.status = core::status_name(run.status);
      set_replicas(run, unit, added);
      known = services.end() - 1;
    }
    if (known->url.empty()) known->url = url_of(u);
    known->replicas.push_back(replica_info(run, unit, state));
  }
  return services;
}

namespace {

/// The run has ended before it had the traffic of its name.
RolloverInfo stopped_rollover(const core::Run& run) {
  const core::Rollover& rollover = run.rollover;
  std::string before = rollover.previous.empty() ? "" : ", " + rollover.previous;
  return {"stopped",
          rollover.previous,
          "the run ended before it had taken over the traffic of its name from the version before" +
              before,
          rollover.step + 1,
          core::step_count(core::canary_of(run)),
          0};
}

}  // namespace

RolloverInfo rollover_of(const core::Run& run) {
  const core::Rollover& rollover = run.rollover;
  bool is_stopped = core::is_final(run.status) &&
                    (rollover.phase == core::RolloverPhase::waiting ||
                     (rollover.phase == core::RolloverPhase::none && !rollover.previous.empty()));
  if (is_stopped) return stopped_rollover(run);
  bool is_done = rollover.phase == core::RolloverPhase::done;
  bool has_none =
      rollover.phase == core::RolloverPhase::none || (is_done && rollover.previous.empty());
  if (has_none) return {};
  const CanarySpec canary = core::canary_of(run);
  bool has_traffic = is_done || rollover.phase == core::RolloverPhase::shifting ||
                     rollover.phase == core::RolloverPhase::observing ||
                     rollover.phase == core::RolloverPhase::measuring ||
                     rollover.phase == core::RolloverPhase::gated;
  uint32_t percent = is_done ? 100 : core::step_percent(canary, rollover.step);
  bool is_reverted = rollover.phase == core::RolloverPhase::reverting && core::is_final(run.status);
  return {is_reverted ? "reverted" : core::phase_name(rollover.phase),
          rollover.previous,
          rollover.reason,
          rollover.step + 1,
          core::step_count(canary),
          has_traffic ? percent : 0};
}

std::string rollover_text(const RolloverInfo& rollover) {
  if (rollover.phase.empty()) return "";
  if (rollover.phase == "waiting")
    return "it waits to take over the traffic of its name from the version before";
  std::string before = rollover.previous.empty() ? "" : ", run " + rollover.previous;
  if (rollover.phase == "done")
    return fmt::format("it has all traffic; the version before was{}", before.substr(1));
  if (!rollover.reason.empty()) return rollover.reason;
  return fmt::format(
      "it takes over the traffic of its name from the version before{}: step {} of {}, {}% of the "
      "traffic, {}",
      before, rollover.step, rollover.steps, rollover.percent, rollover.phase);
}

std::string BudgetInfo::text() const {
  auto nano = [](double amount) { return std::llround(amount * static_cast<double>(kNano)); };
  std::string all = money_text(nano(limit), currency);
  std::string part = money_text(nano(used), "");
  return part + "of " + all;
}

std::optional<BudgetInfo> budget_of(const core::Run& run, const core::State* state) {
  if (!run.budget) return std::nullopt;
  constexpr auto kUnit = static_cast<double>(kNano);
  const core::RunBudget& budget = *run.budget;
  double used = state == nullptr ? budget.spent_nano : core::used_nano(*state, run, state->at);
  return BudgetInfo{budget.terms.prices.currency,
                    static_cast<double>(budget.terms.limit_nano) / kUnit, used / kUnit,
                    budget.is_spent};
}

std::string spent_budget_text(const core::Run& run, const core::State* state) {
  auto budget = budget_of(run, state);
  if (!budget || !budget->is_spent) return "";
  return fmt::format(
      "it has used {} of its budget{}: `flow resume {} --budget \"N {}\"` with a larger one "
      "continues it",
      budget->text(),
      budget->used < budget->limit ? ", and what is left does not suffice for the next task" : "",
      run.id, budget->currency);
}

bool is_over(const std::string& status) {
  return status == "succeeded" || status == "failed" || status == "cancelled";
}

void update_record(const core::Run& run, RunRecord& record) {
  record.status = core::status_name(run.status);
  record.submitted = run.submitted;
  record.finished = run.finished;
  record.counts = counts_of(run);
  record.has_result = run.has_result;
  record.result = run.result;
  record.retried = 0;
  for (const core::Unit& unit : run.units) record.retried += retries_of(unit);
}

RunInfo summary_of_record(const RunRecord& record, InputResolver& resolver) {
  RunInfo info = info_of_record(record);
  if (record.has_result) {
    auto result = resolver.value(record.result);
    if (result.ok()) info.result = **result;
  }
  return info;
}

RunInfo summary_of_run(const core::Run& run, const RunRecord& old_record, InputResolver& resolver,
                       const core::State* state) {
  RunRecord record = old_record;
  update_record(run, record);
  RunInfo info = summary_of_record(record, resolver);
  info.url = url_of(run);
  if (run.status != core::RunStatus::interrupted) info.services = services_of(run, state);
  info.rollover = rollover_of(run);
  info.budget = budget_of(run, state);
  for (const core::Action& action : run.actions)
    info.actions.push_back({core::action_name(action.kind), action.by, action.name, action.at});
  return info;
}

bool may_wait(const core::Unit& unit) {
  return unit.status == core::UnitStatus::pending || unit.status == core::UnitStatus::ready ||
         unit.status == core::UnitStatus::waiting;
}

bool is_shown(const core::Run& run, core::UnitId unit) {
  return !run.units[unit].dropped && (core::is_counted(run, unit) || is_failed_join(run, unit));
}

RunInfo info_of_run(const core::Run& run, const RunRecord& record, InputResolver& resolver,
                    const core::State* state) {
  RunInfo info = summary_of_run(run, record, resolver, state);
  info.tasks = tasks_of(run, state);
  return info;
}

std::vector<TaskInfo> tasks_of(const core::Run& run, const core::State* state) {
  std::optional<core::WaitExplainer> waits;
  if (state != nullptr) waits.emplace(*state, run.id);
  std::vector<TaskInfo> tasks;
  for (core::UnitId unit = 0; unit < run.units.size(); unit++)
    if (is_shown(run, unit))
      tasks.push_back(info_of_task(run, unit, state, waits ? &*waits : nullptr));
  return tasks;
}

}  // namespace flow
