// Computes derived fields from essential ones.
#include <algorithm>

#include "engine/core/free_resources.hpp"
#include "engine/core/gangs.hpp"
#include "engine/core/graph.hpp"
#include "engine/core/transition.hpp"

namespace flow::core {

namespace {

bool waits_for_result(const Unit& u) { return u.branch != Branch::unknown || u.expanded; }

void rebuild_nodes(Run& run) {
  run.dynamic_nodes.clear();
  run.dynamic_units.clear();
  run.dynamic_of.clear();
  run.is_consumed.assign(run.units.size(), false);
  for (const TaskNode& node : run.plan->nodes) mark_consumed(run, node);
  mark_consumed(run, run.plan->result);
  for (size_t i = 0; i < run.dynamics.size(); i++) {
    DynamicCalls& calls = run.dynamics[i];
    FLOW_CHECK(calls.fragment != nullptr);
    FLOW_CHECK(calls.first_node == run.plan->nodes.size() + run.dynamic_nodes.size());
    append_nodes(run, calls);
    if (is_dynamic(run, calls.unit)) run.dynamic_of[calls.unit] = i;
  }
}

/// Visits every edge of every unit that is not dropped, with the phase in which the unit waits.
template <typename Visit>
void for_each_edge(const Run& run, Visit visit) {
  EdgeReader reader(run);
  std::vector<Edge> edges;
  for (UnitId unit = 0; unit < run.units.size(); unit++) {
    const Unit& u = run.units[unit];
    if (u.dropped) continue;
    reader.before(unit, edges);
    for (const Edge& edge : edges) visit(unit, edge, Phase::waiting_for_dependencies);
    if (!waits_for_result(u)) continue;
    result_edges(run, unit, edges);
    for (const Edge& edge : edges) visit(unit, edge, Phase::branch);
  }
}

/// Computes dependents and the number of unsatisfied edges. Reading the edges from the plan is most
/// of the work, so they are read once.
void rebuild_edges(Run& run) {
  struct DependentEntry {
    UnitId from;
    uint32_t dependent;
  };
  std::vector<DependentEntry> all;
  all.reserve(run.units.size());
  Dependents& dependents = run.dependents;
  dependents.late.clear();
  dependents.offsets.assign(run.units.size() + 1, 0);
  for (Unit& u : run.units) u.waits_on = 0;
  for_each_edge(run, [&](UnitId unit, const Edge& edge, Phase waited_in) {
    all.push_back({edge.from, edge.guard ? unit | Dependents::kGuard : unit});
    dependents.offsets[edge.from + 1]++;
    Unit& u = run.units[unit];
    if (u.phase == waited_in && !is_satisfied(run, unit, edge)) u.waits_on++;
  });
  for (size_t i = 1; i < dependents.offsets.size(); i++)
    dependents.offsets[i] += dependents.offsets[i - 1];
  dependents.flat.assign(dependents.offsets.back(), 0);
  std::vector<uint32_t> next(dependents.offsets.begin(), dependents.offsets.end() - 1);
  for (const DependentEntry& entry : all) dependents.flat[next[entry.from]++] = entry.dependent;
}

void rebuild_map_waits(Run& run) {
  for (const auto& [map_unit, instances] : run.instances) {
    if (run.units[map_unit].phase != Phase::instances) continue;
    for (UnitId instance : instances) {
      run.units[map_unit].waits_on += is_final(run.units[instance].status) ? 0 : 1;
    }
  }
}

void rebuild_instances(Run& run) {
  run.instances.clear();
  for (UnitId unit = 0; unit < run.units.size(); unit++) {
    const Unit& u = run.units[unit];
    if (u.dropped) continue;
    if (u.instance >= 0) {
      run.instances[run.unit_of(u.node)].push_back(unit);
    } else if (u.expanded && may_have_instances(run, unit)) {
      run.instances[unit];
    }
  }
}

void rebuild_counts(State& state, Run& run) {
  run.counts = {};
  run.phases = {};
  run.open_services = run.services_up = run.open_replica_sets = run.failed_units = 0;
  run.cpus_used_milli = 0;
  run.map_running.clear();
  run.signal_waiters.clear();
  run.services.clear();
  if (run.budget) run.budget->running.clear();
  for (UnitId unit = 0; unit < run.units.size(); unit++) {
    const Unit& u = run.units[unit];
    if (u.dropped) continue;
    run.phases[static_cast<size_t>(u.phase)]++;
    if (is_counted(run, unit)) count_unit(run.counts, u, 1);
    if (u.status == UnitStatus::failed && !u.gives_missing) run.failed_units++;
    if (is_service(run, unit)) {
      run.services.push_back(unit);
      if (!is_final(u.status)) run.open_services++;
      if (is_up(u)) run.services_up++;
    }
    if (is_replica_set(run, unit) && !is_final(u.status)) run.open_replica_sets++;
    if (u.phase == Phase::signal) run.signal_waiters[u.detail->waiting_for].insert(unit);
    if (u.phase == Phase::running) {
      if (run.budget) run.budget->running.insert(unit);
      for_each_rank(u, [&](WorkerId at, const auto&) {
        run.cpus_used_milli += held_on(state.workers[at].info, run, unit).cpus_milli;
      });
      if (UnitId map = limited_map_of(run, unit); map != kNoNode) run.map_running[map]++;
    }
  }
}

}  // namespace

void count_unit(RunCounts& counts, const Unit& u, int by) {
  auto add = [by](uint32_t& count) { count += static_cast<uint32_t>(by); };
  switch (u.status) {
    case UnitStatus::pending:
      return add(counts.pending);
    case UnitStatus::ready:
      return add(counts.ready);
    case UnitStatus::running:
      return add(counts.running);
    case UnitStatus::waiting:
      return add(counts.waiting);
    case UnitStatus::succeeded:
      if (u.cached) add(counts.cached);
      return add(counts.succeeded);
    case UnitStatus::failed:
      if (u.gives_missing) add(counts.ignored);
      return add(counts.failed);
    case UnitStatus::skipped:
      return add(counts.skipped);
    case UnitStatus::cancelled:
      return add(counts.cancelled);
  }
}

void enqueue_ready(State& state, Run& run, UnitId unit) {
  SchedulingClass request = resource_request(state, run, unit);
  UnitSet& units = run.ready[request];
  if (!units.empty() && units.first() < unit) {
    units.insert(unit);
    return;
  }
  if (!units.empty()) state.ready.erase(ReadyHead{run.id, units.first(), request});
  units.insert(unit);
  state.ready.insert(ReadyHead{run.id, unit, request});
}

void dequeue_ready(State& state, Run& run, UnitId unit) {
  SchedulingClass request = resource_request(state, run, unit);
  auto found = run.ready.find(request);
  FLOW_CHECK(found != run.ready.end());
  UnitSet& units = found->second;
  bool was_head = units.first() == unit;
  FLOW_CHECK(units.erase(unit));
  if (was_head) {
    auto head = state.ready.extract(ReadyHead{run.id, unit, request});
    FLOW_CHECK(!head.empty());
    if (!units.empty()) {
      head.value().unit = units.first();
      state.ready.insert(std::move(head));
    }
  }
  if (units.empty()) run.ready.erase(found);
}

void detach(State& state, Run& run) {
  for (const auto& [request, units] : run.ready) {
    state.ready.erase(ReadyHead{run.id, units.first(), request});
  }
  run.ready.clear();
  run.computing.clear();
  for (UnitId unit = 0; unit < run.units.size(); unit++) {
    Unit& u = run.units[unit];
    if (u.key_scope == KeyScope::shared) state.computing.erase(u.key, {run.number, unit});
    u.key_scope = KeyScope::none;
    if (u.phase != Phase::coalesced) continue;
    auto waiters = state.key_waiters.find(u.key);
    FLOW_CHECK(waiters != state.key_waiters.end());
    waiters->second.erase({run.id, unit});
    if (waiters->second.empty()) state.key_waiters.erase(waiters);
  }
}

void attach(State& state, Run& run) {
  for (UnitId unit = 0; unit < run.units.size(); unit++) {
    Unit& u = run.units[unit];
    u.key_scope = key_scope_of(run, unit);
    if (u.key_scope == KeyScope::shared) state.computing.insert(u.key, {run.number, unit});
    if (u.key_scope == KeyScope::own) run.computing.insert(u.key, {run.number, unit});
    if (u.phase == Phase::coalesced) state.key_waiters[u.key].insert({run.id, unit});
    if (u.phase == Phase::ready) enqueue_ready(state, run, unit);
  }
}

void rebuild_run(State& state, Run& run) {
  rebuild_nodes(run);
  rebuild_instances(run);
  rebuild_edges(run);
  rebuild_map_waits(run);
  rebuild_counts(state, run);
  run.tagged.clear();
  add_tagged(run, 0);
}

/// Requeues ready units, because their requests depend on the workers.
static void requeue_ready(State& state) {
  state.ready.clear();
  for (auto& [id, run] : state.runs) {
    if (run.ready.empty()) continue;
    run.ready.clear();
    for (UnitId unit = 0; unit < run.units.size(); unit++)
      if (run.units[unit].phase == Phase::ready) enqueue_ready(state, run, unit);
  }
}

void rebuild_capacity(State& state) {
  ClusterCapacity capacity;
  bool is_first = true;
  for (const WorkerState& worker : state.workers) {
    if (worker.is_lost() || worker.info.cpus_milli == 0) continue;
    capacity.cpus_milli += worker.info.cpus_milli;
    if (is_first || worker.info.cpus_milli < capacity.cpus_milli_min)
      capacity.cpus_milli_min = worker.info.cpus_milli;
    if (is_first || worker.info.memory_bytes < capacity.memory_bytes_min)
      capacity.memory_bytes_min = worker.info.memory_bytes;
    is_first = false;
  }
  state.capacity = capacity;
  requeue_ready(state);
}

void rebuild_derived(State& state) {
  for (WorkerState& worker : state.workers) worker.free = all_free(worker.info);
  state.ready.clear();
  state.computing.clear();
  state.key_waiters.clear();
  state.run_numbers.clear();
  state.next_run_number = 1;
  for (auto& [id, run] : state.runs) {
    run.number = state.next_run_number++;
    state.run_numbers[run.number] = id;
    run.ready.clear();
    run.computing.clear();
  }
  rebuild_capacity(state);
  for (auto& [id, run] : state.runs) {
    rebuild_run(state, run);
    attach(state, run);
    for (UnitId unit = 0; unit < run.units.size(); unit++) {
      if (run.units[unit].phase == Phase::running) take_ranks(state, run, unit);
    }
  }
}

}  // namespace flow::core
