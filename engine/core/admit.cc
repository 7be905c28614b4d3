// Validation of events before they enter the journal. Everything behind it trusts them.
#include "engine/core/gangs.hpp"
#include "engine/core/gpu_faults.hpp"
#include "engine/core/graph.hpp"
#include "engine/core/mutants.hpp"
#include "engine/core/rollover.hpp"
#include "engine/core/scaling.hpp"
#include "engine/core/workers.hpp"
#include "engine/plan/tag.hpp"

namespace flow::core {

namespace {

const Run* find_run(const State& state, const RunId& id) {
  auto found = state.runs.find(id);
  return found == state.runs.end() ? nullptr : &found->second;
}

/// The unit, if its run is active and the unit is in this phase; else null.
const Unit* find_unit(const State& state, const RunId& id, UnitId unit, Phase phase) {
  const Run* run = find_run(state, id);
  if (run == nullptr || is_final(run->status) || unit >= run->units.size()) return nullptr;
  const Unit& u = run->units[unit];
  return !u.dropped && u.phase == phase ? &u : nullptr;
}

/// Fencing: only reports of the unit's current attempt are accepted.
bool is_current(const State& state, const AttemptId& id) {
  const Unit* u = find_unit(state, id.run, id.unit, Phase::running);
  if (u == nullptr) return false;
  if (has_mutant(Mutant::admit_ignores_attempt)) return true;
  bool is_same_start = u->epoch == id.epoch || has_mutant(Mutant::report_taken_twice);
  return u->attempts == id.attempt && is_same_start;
}

bool has_valid_edges(const Plan& plan) {
  size_t units = plan.nodes.size();
  bool within = true;
  auto check_node = [&](uint32_t node) { within = within && node < plan.nodes.size(); };
  for (const TaskNode& node : plan.nodes) {
    if (node.kind != NodeKind::when && node.def >= plan.defs.size()) return false;
    for_each_data_ref(node, check_node);
    for (uint32_t before : node.detail().after) check_node(before);
    for_each_ref(node.detail().then_value, check_node);
    for_each_ref(node.detail().else_value, check_node);
    if (node.guard.when != kNoNode) check_node(node.guard.when);
    units += instances_from_start(plan, node);
  }
  for_each_ref(plan.result, check_node);
  return units <= kNodesMax && within;
}

bool has_valid_edges(const Plan& plan, const PlanFragment& fragment) {
  Plan calls;
  calls.defs = plan.defs;
  calls.nodes = fragment.nodes;
  calls.result = fragment.result;
  return has_valid_edges(calls);
}

/// Whether the calls belong to a dynamic task and refer to existing units only.
bool is_sound(const State& state, const RunId& id, UnitId unit,
              const std::shared_ptr<const PlanFragment>& fragment) {
  if (fragment == nullptr) return true;
  const Run& run = *find_run(state, id);
  return is_dynamic(run, unit) && has_valid_edges(*run.plan, *fragment);
}

/// Whether only the options that are functions differ from the definition, with valid values.
bool may_be_computed(const TaskDef& def, const AttemptResources& computed) {
  const Resources &to = computed.resources, &from = def.resources;
  auto is_same_or_function = [&](ResourceFunction option, bool is_same, bool is_valid) {
    return (def.resource_functions & option) != 0 ? is_valid : is_same;
  };
  return to.gpu_model == from.gpu_model && to.where == from.where && to.ranks == from.ranks &&
         to.ranks_max == from.ranks_max &&
         is_same_or_function(kCpusFunction, to.cpus_milli == from.cpus_milli, to.cpus_milli > 0) &&
         is_same_or_function(kMemoryFunction, to.memory_bytes == from.memory_bytes,
                             to.memory_bytes > 0) &&
         is_same_or_function(kGpusFunction, to.gpus_milli == from.gpus_milli, to.gpus_milli >= 0) &&
         is_same_or_function(kGpuMemoryFunction, to.gpu_memory_bytes == from.gpu_memory_bytes,
                             to.gpu_memory_bytes > 0) &&
         is_same_or_function(kCustomResourcesFunction, to.custom_resources == from.custom_resources,
                             flow::are_sound(to.custom_resources)) &&
         is_same_or_function(kTimeoutFunction, computed.timeout_ms == def.timeout_ms,
                             computed.timeout_ms > 0);
}

struct AdmissionCheck {
  const State& state;

  bool operator()(const EngineStarted& e) const {
    return e.epoch > state.epoch && e.cpus_milli >= 0 && e.memory_bytes >= 0 &&
           flow::are_sound(e.custom_resources);
  }
  bool operator()(const RunSubmitted& e) const {
    return !e.run.empty() && find_run(state, e.run) == nullptr && e.plan != nullptr &&
           state.epoch > 0 && e.jobs >= 0 && has_valid_edges(*e.plan);
  }
  bool operator()(const InputsResolved& e) const {
    const Unit* u = find_unit(state, e.run, e.unit, Phase::resolving);
    if (u == nullptr) return false;
    const Run& run = *find_run(state, e.run);
    bool is_task = !is_map_unit(run, e.unit) && run.node(u->node).kind != NodeKind::when;
    bool may_hit = !e.hit || (!is_service(run, e.unit) && def_of(run, e.unit)->cache && !u->forced);
    return is_task && may_hit && is_sound(state, e.run, e.unit, e.fragment);
  }
  bool operator()(const InputsFailed& e) const {
    return find_unit(state, e.run, e.unit, Phase::resolving) != nullptr ||
           find_unit(state, e.run, e.unit, Phase::sizing) != nullptr ||
           find_unit(state, e.run, e.unit, Phase::gathering) != nullptr;
  }
  bool operator()(const InputsMissing& e) const {
    return find_unit(state, e.run, e.unit, Phase::resolving) != nullptr && !e.why.empty() &&
           find_run(state, e.run)->node(find_run(state, e.run)->units[e.unit].node).kind !=
               NodeKind::when;
  }
  bool operator()(const MapExpanded& e) const {
    const Unit* u = find_unit(state, e.run, e.unit, Phase::resolving);
    if (u == nullptr || !is_map_unit(*find_run(state, e.run), e.unit)) return false;
    bool is_tagged = find_run(state, e.run)->node(u->node).detail().tags_items && e.count > 0;
    return e.tags.size() == (is_tagged ? e.count : 0) &&
           std::ranges::all_of(e.tags, [](const auto& tag) { return tag_problem(tag).empty(); });
  }
  bool operator()(const ResourcesComputed& e) const {
    const Unit* u = find_unit(state, e.run, e.unit, Phase::sizing);
    if (u == nullptr) return false;
    const Run& run = *find_run(state, e.run);
    return e.computed.attempt == next_attempt(state, run, e.unit).attempt &&
           may_be_computed(*def_of(run, e.unit), e.computed);
  }
  // The rollover of the run is at this step and in this phase.
  bool is_at(const RunId& id, uint32_t step, RolloverPhase phase) const {
    const Run* run = find_run(state, id);
    return run != nullptr && !is_final(run->status) && run->rollover.phase == phase &&
           run->rollover.step == step;
  }
  bool operator()(const TrafficShifted& e) const {
    return is_at(e.run, e.step, RolloverPhase::shifting) ||
           is_at(e.run, e.step, RolloverPhase::reverting);
  }
  // A canary may be ended in any phase: that is a measure with an error.
  bool operator()(const TrafficMeasured& e) const {
    if (is_at(e.run, e.step, RolloverPhase::measuring)) return true;
    return !e.error.empty() && (is_at(e.run, e.step, RolloverPhase::shifting) ||
                                is_at(e.run, e.step, RolloverPhase::observing) ||
                                is_at(e.run, e.step, RolloverPhase::gated));
  }
  bool operator()(const ReplicasScaled& e) const {
    const Run* run = find_run(state, e.run);
    return run != nullptr && may_scale(state, *run, e.unit, e.replicas);
  }
  bool operator()(const GateCalled& e) const {
    if (!is_at(e.run, e.step, RolloverPhase::gated) || e.fragment == nullptr) return false;
    const Run& run = *find_run(state, e.run);
    auto call = next_gate_call(run);
    const std::vector<TaskNode>& nodes = e.fragment->nodes;
    return call && run.rollover.gate == kNoNode && nodes.size() == 1 &&
           nodes[0].kind == NodeKind::task && nodes[0].def == call->def &&
           nodes[0].name == call->name && has_valid_edges(*run.plan, *e.fragment);
  }
  bool operator()(const GateAnswered& e) const {
    if (!is_at(e.run, e.step, RolloverPhase::gated)) return false;
    const Run& run = *find_run(state, e.run);
    UnitId gate = run.rollover.gate;
    bool has_result = gate != kNoNode && run.units[gate].status == UnitStatus::succeeded;
    return e.passes ? has_result : !e.why.empty() && (has_result || gate == kNoNode);
  }
  bool operator()(const WhenResolved& e) const {
    const Unit* u = find_unit(state, e.run, e.unit, Phase::resolving);
    return u != nullptr && find_run(state, e.run)->node(u->node).kind == NodeKind::when;
  }
  bool operator()(const ValueGathered& e) const {
    if (e.unit != kNoNode) return find_unit(state, e.run, e.unit, Phase::gathering) != nullptr;
    const Run* run = find_run(state, e.run);
    return run != nullptr && !is_final(run->status) && run->gathering;
  }
  bool operator()(const Assigned& e) const {
    const Unit* u = find_unit(state, e.id.run, e.id.unit, Phase::ready);
    if (u == nullptr) return false;
    const Run& run = *find_run(state, e.id.run);
    bool is_next = e.id.attempt == u->attempts + 1 &&
                   e.id.epoch == fencing_token(state.epoch, u->requeues);  // as next_attempt()
    if (run.stopping || run.cancelling || !is_next) return false;
    SchedulingClass request = resource_request(state, run, e.id.unit);
    auto running = run.map_running.find(request.limited_map);
    uint32_t map_running = running == run.map_running.end() ? 0 : running->second;
    if (e.worker >= state.workers.size()) return false;
    const WorkerState& worker = state.workers[e.worker];
    if (request.is_gang()) {
      request.ranks =
          static_cast<uint32_t>(e.others.size() + 1);  // number of ranks of an elastic gang
      return may_start(state, run, request, run.cpus_used_milli, map_running) &&
             may_place(state, resource_request(state, run, e.id.unit), e);
    }
    if (!e.others.empty() || e.share != Share{}) return false;
    return may_allocate_gpus(worker.info.gpus, worker.free, request.gpu, e.gpus) &&
           may_start(state, run, request, run.cpus_used_milli, map_running) &&
           fits(state, e.worker, worker.free, request, expected_short_us(run, e.id.unit));
  }
  bool operator()(const AttemptRequeued& e) const { return is_current(state, e.id); }
  bool operator()(const AttemptSucceeded& e) const {
    return is_current(state, e.id) && is_sound(state, e.id.run, e.id.unit, e.fragment);
  }
  bool operator()(const AttemptFailed& e) const {
    if (!is_current(state, e.id)) return false;
    const Unit& u = find_run(state, e.id.run)->units[e.id.unit];
    return e.rank == 0 || (u.detail && e.rank <= u.detail->others.size());
  }
  bool operator()(const AttemptWaiting& e) const {
    return is_current(state, e.id) && !e.signal.empty() && !e.wait_name.empty() &&
           !is_service(*find_run(state, e.id.run), e.id.unit);
  }
  bool operator()(const AttemptStopped& e) const { return is_current(state, e.id); }
  bool operator()(const ServiceReady& e) const {
    if (!is_current(state, e.id) || e.url.empty()) return false;
    const Run& run = *find_run(state, e.id.run);
    const Unit& u = run.units[e.id.unit];
    return is_service(run, e.id.unit) && (!u.detail || u.detail->url.empty());
  }
  bool operator()(const StepSaved& e) const { return is_current(state, e.id) && !e.name.empty(); }
  bool operator()(const CheckpointSaved& e) const { return is_current(state, e.id); }
  bool operator()(const ResizeRequested& e) const {
    if (!is_current(state, e.id)) return false;
    const Run& run = *find_run(state, e.id.run);
    const Resources& requested = def_of(run, e.id.unit)->resources;
    const auto& detail = run.units[e.id.unit].detail;
    bool is_wound_down = run.stopping || run.cancelling || run.ending;
    return !is_wound_down && detail && !detail->is_resizing && e.ranks <= requested.ranks_max &&
           e.ranks > detail->others.size() + 1;
  }
  bool operator()(const SignalReceived& e) const {
    const Run* run = find_run(state, e.run);
    return run != nullptr && !is_final(run->status) && !e.name.empty() &&
           !run->signals.contains(e.name);  // the first of a name answers every wait of it
  }
  bool operator()(const TimerFired& e) const {
    if (e.run.empty())
      return e.unit < state.workers.size() && state.workers[e.unit].aside_until != 0 &&
             state.workers[e.unit].aside_serial == e.serial;
    if (e.unit == kNoNode) {
      const Run* run = find_run(state, e.run);
      return run != nullptr && !is_final(run->status) &&
             run->rollover.phase == RolloverPhase::observing && run->rollover.serial == e.serial;
    }
    if (e.unit == kBudgetTimer) {
      const Run* run = find_run(state, e.run);
      return run != nullptr && !is_final(run->status) && run->budget &&
             run->budget->timer_at != 0 && run->budget->serial == e.serial;
    }
    const Unit* u = find_unit(state, e.run, e.unit, Phase::signal);
    if (u == nullptr) u = find_unit(state, e.run, e.unit, Phase::backoff);
    return u != nullptr && u->timer_serial == e.serial;
  }
  bool operator()(const BudgetSet& e) const {
    const Run* run = find_run(state, e.run);
    return run != nullptr && e.terms.limit_nano > 0 && e.terms.before_nano >= 0 &&
           !e.terms.prices.currency.empty();
  }
  bool operator()(const BudgetReached& e) const {
    const Run* run = find_run(state, e.run);
    return run != nullptr && !is_final(run->status) && run->budget && !run->stopping &&
           !run->cancelling && !run->ending;
  }
  bool operator()(const CancelRequested& e) const {
    const Run* run = find_run(state, e.run);
    return run != nullptr && !is_final(run->status) && !run->cancelling;
  }
  bool operator()(const StopRequested& e) const {
    const Run* run = find_run(state, e.run);
    return run != nullptr && !is_final(run->status) && !run->stopping && !run->cancelling &&
           !run->ending;
  }
  bool operator()(const ServeEnded& e) const {
    const Run* run = find_run(state, e.run);
    return run != nullptr && run->status == RunStatus::serving && !run->ending && !run->stopping;
  }
  bool operator()(const RetryRequested& e) const {
    const Run* run = find_run(state, e.run);
    if (run == nullptr) return false;
    bool at_rest = is_final(run->status) || run->status == RunStatus::interrupted;
    auto may_be_lost = [&](UnitId unit) {
      return unit < run->units.size() && !run->units[unit].dropped &&
             run->units[unit].status == UnitStatus::succeeded && !is_service(*run, unit) &&
             !is_replica_set(*run, unit) && !is_gate(*run, unit);
    };
    bool may_lose = e.lost.empty() || at_rest;
    if (!may_lose || !std::all_of(e.lost.begin(), e.lost.end(), may_be_lost)) return false;
    if (!e.has_unit) {
      bool stopping = run->stopping && !run->cancelling && !run->ending;
      bool has_failures = run->status != RunStatus::succeeded || run->counts.ignored > 0;
      return stopping || (at_rest && has_failures);
    }
    if (!at_rest || !e.lost.empty() || e.unit >= run->units.size()) return false;
    const Unit& u = run->units[e.unit];
    return !u.dropped && is_final(u.status) && run->node(u.node).kind != NodeKind::when &&
           !is_service(*run, e.unit) && !is_replica_set(*run, e.unit) && !is_gate(*run, e.unit);
  }
  bool operator()(const RunDeleted& e) const {
    const Run* run = find_run(state, e.run);
    return run != nullptr && run->phase_count(Phase::running) == 0 &&
           (is_final(run->status) || run->status == RunStatus::interrupted);
  }
  bool operator()(const GpusFound& e) const {
    if (state.epoch == 0 || e.gpus.empty() || e.worker >= state.workers.size()) return false;
    const WorkerState& worker = state.workers[e.worker];
    if (e.worker == 0) return worker.info.gpus.empty() && are_sound(e.gpus);
    std::vector<Gpu> all = worker.info.gpus;
    all.insert(all.end(), e.gpus.begin(), e.gpus.end());
    return worker.takes_attempts() && are_sound(all);
  }
  bool operator()(const GpuFailed& e) const {
    if (e.worker >= state.workers.size() || state.workers[e.worker].is_lost() || e.fault.empty())
      return false;
    const std::vector<Gpu>& gpus = state.workers[e.worker].info.gpus;
    auto at = find_gpu(gpus, e.uuid);
    return at && is_new_fault(gpus[*at], e.is_dead);
  }
  bool operator()(const WorkerJoined& e) const {
    if (state.epoch == 0 || e.worker.name.empty() || e.worker.cpus_milli < 0 ||
        e.worker.memory_bytes < 0 || !are_sound(e.worker.gpus) || !are_sound(e.worker.labels) ||
        !flow::are_sound(e.worker.custom_resources) || e.attempts.size() > kOffersMax)
      return false;
    auto place = worker_id_for(state, e.worker.name);
    return place && (*place == state.workers.size() || !state.workers[*place].is_up);
  }
  bool operator()(const WorkerDisconnected& e) const {
    return e.worker > 0 && e.worker < state.workers.size() && state.workers[e.worker].is_up;
  }
  bool operator()(const WorkerLost& e) const {
    return e.worker > 0 && e.worker < state.workers.size() && !state.workers[e.worker].is_lost();
  }
  bool operator()(const WorkersAnnounced& e) const {
    return state.epoch > 0 && e.count <= kWorkersMax && e.count != state.announced;
  }
  bool operator()(const WorkerDraining& e) const {
    return e.worker > 0 && e.worker < state.workers.size() &&
           state.workers[e.worker].takes_attempts();
  }
};

}  // namespace

bool admit(const State& state, const Event& event) {
  return std::visit(AdmissionCheck{state}, event);
}

}  // namespace flow::core
