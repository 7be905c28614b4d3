// The invariants of State, checked from the state alone.
#include <algorithm>
#include <concepts>
#include <set>
#include <string_view>
#include <tuple>

#include "engine/core/gangs.hpp"
#include "engine/core/graph.hpp"
#include "engine/core/rollover.hpp"
#include "engine/core/scaling.hpp"

namespace flow::core {

namespace {

class InvariantChecker {
 public:
  explicit InvariantChecker(const State& state) : state_(state) {}

  std::string check() {
    for (const auto& [id, run] : state_.runs) {
      check_units(run);
      check_run(run);
      check_rollover(run);
      check_budget(run);
    }
    check_workers();
    check_free_resources();
    check_derived();
    return problem_;
  }

 private:
  /// A run, or a unit of one. Its name is composed only if an invariant is violated.
  struct Place {
    const Run& run;
    std::optional<UnitId> unit = std::nullopt;

    std::string text() const {
      return "run " + run.id + (unit ? ", unit " + unit_name(run, *unit) : "") + ": ";
    }
  };

  void expect(bool holds, const char* promise) {
    if (!holds && problem_.empty()) problem_ = promise;
  }
  void expect(bool holds, const Place& place, const char* promise) {
    if (!holds && problem_.empty()) problem_ = place.text() + promise;
  }
  template <typename Promise>
  requires std::invocable<Promise>
  void expect(bool holds, const Place& place, const Promise& promise) {
    if (!holds && problem_.empty()) problem_ = place.text() + promise();
  }

  void check_budget(const Run& run) {
    if (!run.budget) return;
    std::set<UnitId> running;
    for (UnitId unit = 0; unit < run.units.size(); unit++)
      if (run.units[unit].phase == Phase::running && !run.units[unit].dropped) running.insert(unit);
    expect(run.budget->running == running, Place{run}, "its budget counts other units as running");
    expect(run.budget->spent_nano >= 0, Place{run}, "its budget has a negative amount");
    expect(run.budget->longest_ms.size() == run.plan->defs.size(), Place{run},
           "its budget has other tasks");
  }

  void check_units(const Run& run) {
    for (UnitId unit = 0; unit < run.units.size(); unit++) {
      const Unit& u = run.units[unit];
      Place place{run, unit};
      if (u.dropped) {
        expect(is_final(u.status) && u.key_scope == KeyScope::none, place,
               "a dropped unit continues");
        continue;
      }
      expect(is_final(u.status) == (u.phase == Phase::done), place, "final and done differ");
      expect((u.status == UnitStatus::running) == (u.phase == Phase::running), place,
             "running without an attempt, or an attempt without running");
      expect((u.status == UnitStatus::ready) == (u.phase == Phase::ready), place,
             "ready but not queued");
      bool waits = u.phase == Phase::waiting_for_dependencies || u.phase == Phase::branch ||
                   u.phase == Phase::instances;
      expect(waits == (u.waits_on > 0), place,
             "waits for nothing, or for something in a later phase");
      if (u.phase == Phase::running) {
        uint64_t epoch = u.epoch >> kRequeuesBits;
        expect(u.attempts > 0 && (is_on(u, 0) ? epoch == state_.epoch : epoch <= state_.epoch),
               place, "its attempt is of another engine start");
        expect(!is_final(run.status), place, "runs in a run that ended");
        check_ranks(run, unit, place);
      }
      if (u.status == UnitStatus::succeeded)
        expect(u.satisfied, place, "its dependents were not notified");
      if (u.status == UnitStatus::failed) {
        expect(u.detail && u.detail->failure.cause != Cause::none, place, "failed without a cause");
      }
      if (u.gives_missing) {
        bool has_ended = u.status == UnitStatus::failed || u.status == UnitStatus::skipped;
        expect(has_ended && u.satisfied && u.result.is_zero(), place,
               "its result is missing, but it has one, or its dependents were not notified");
      }
      if (u.cached && u.status == UnitStatus::succeeded)
        expect(u.resolved, place, "cached without a key");
      if (u.key_scope != KeyScope::none) {
        bool computes = u.phase == Phase::sizing || u.phase == Phase::ready ||
                        u.phase == Phase::running || u.phase == Phase::signal ||
                        u.phase == Phase::backoff;
        expect(computes, place, "holds its key but does not compute");
      }
      if (u.phase == Phase::signal) {
        expect(u.detail && !u.detail->waiting_for.empty() &&
                   u.detail->waits.contains(u.detail->wait_name),
               place, "waits for a signal without a name");
      }
      if (is_replica_set(run, unit)) check_replica_set(run, unit, place);
      if (u.phase == Phase::coalesced) check_coalesced(run, u, place);
      check_edges(run, unit, place);
    }
  }

  void check_replica_set(const Run& run, UnitId unit, const Place& place) {
    const Unit& u = run.units[unit];
    const std::vector<UnitId>& replicas = instances_of(run, unit);
    expect(u.attempts == 0 && (u.phase == Phase::instances || u.phase == Phase::done), place,
           "runs beside its replicas");
    const ServiceSpec& service = def_of(run, unit)->service;
    uint32_t in_use = replicas_in_use(run, unit),
             most = std::max(service.replicas, service.scaling.max);
    expect(replicas.size() == most, place, "has more or fewer replicas than it asks for");
    expect(in_use >= service.replicas && in_use <= most, place,
           "uses more or fewer replicas than its limits permit");
    for (UnitId replica : replicas) check_spare(run, replica);
    bool is_any_up =
        std::ranges::any_of(replicas, [&](UnitId replica) { return is_up(run.units[replica]); });
    expect(u.satisfied || !is_any_up, place, "a replica is ready, and its dependents wait");
  }

  void check_spare(const Run& run, UnitId replica) {
    if (!is_spare(run, replica)) return;
    Phase phase = run.units[replica].phase;
    bool is_at_rest =
        phase == Phase::parked || phase == Phase::waiting_for_dependencies || phase == Phase::done;
    bool is_on_its_way = phase == Phase::running || phase == Phase::resolving;  // to be parked
    expect(is_at_rest || is_on_its_way, {run, replica}, "would start, and is not needed");
  }

  void check_ranks(const Run& run, UnitId unit, const Place& place) {
    const Unit& u = run.units[unit];
    const TaskDef& def = *def_of(run, unit);
    uint32_t ranks = 0;
    for_each_rank(u, [&](WorkerId at, const std::vector<std::string>& gpus) {
      ranks++;
      expect(at < state_.workers.size() && !state_.workers[at].is_lost(), place,
             "runs on a worker that is gone");
      expect(at == 0 || !is_head_only(def), place, "runs outside of the engine's machine");
      expect(gpu_request(resources_of(run, unit)).count() == gpus.size(), place,
             "holds more or fewer GPUs than it asks for");
      for (const std::string& uuid : gpus) {
        auto gpu = find_gpu(state_.workers[at].info.gpus, uuid);
        expect(gpu && !state_.workers[at].info.gpus[*gpu].is_dead, place,
               "runs on a GPU that is dead");
      }
    });
    expect(!u.detail || !u.detail->is_resizing || ranks < def.resources.ranks_max, place,
           "is to grow beyond what it asks for");
    expect(ranks >= def.resources.ranks &&
               ranks <= std::max(def.resources.ranks, def.resources.ranks_max),
           place, "runs as more or fewer ranks than it asks for");
  }

  void check_coalesced(const Run& run, const Unit& u, const Place& place) {
    auto waiters = state_.key_waiters.find(u.key);
    expect(waiters != state_.key_waiters.end(), place,
           "waits for a duplicate without being registered");
    expect(own_holder(run, u.key) != kNoNode || shared_holder(state_, u.key) != nullptr, place,
           "waits for a key that no unit computes");
  }

  void check_edges(const Run& run, UnitId unit, const Place& place) {
    if (run.units[unit].phase != Phase::waiting_for_dependencies) return;
    EdgeReader reader(run);
    std::vector<Edge> edges;
    reader.before(unit, edges);
    for (const Edge& edge : edges) {
      expect(!is_dead(run, unit, edge), place, "waits for an event that will never happen");
    }
  }

  void check_run(const Run& run) {
    Place place{run};
    if (is_final(run.status)) {
      expect(run.open_units() == 0, place, "ended with open units");
      expect(run.status == RunStatus::cancelled || run.has_result, place,
             "ended without its result");
      return;
    }
    if (run.status == RunStatus::serving) {
      uint32_t of_services = run.open_services + run.open_replica_sets;
      expect(run.has_result && run.open_units() == of_services, place, "serves too early");
    }
    if (run.status == RunStatus::interrupted) {
      expect(run.stopping && run.phase_count(Phase::running) == 0, place, "interrupted but runs");
    }
    if (run.stopping) {
      expect(run.phase_count(Phase::ready) + run.phase_count(Phase::sizing) == 0, place,
             "stopping, but would start more");
      return;
    }
    uint32_t moves = run.phase_count(Phase::resolving) + run.phase_count(Phase::coalesced) +
                     run.phase_count(Phase::sizing) + run.phase_count(Phase::ready) +
                     run.phase_count(Phase::running) + run.phase_count(Phase::signal) +
                     run.phase_count(Phase::backoff) + run.phase_count(Phase::gathering) +
                     (run.gathering ? 1 : 0);
    uint32_t held = 0, spare = 0;
    for (UnitId service : run.services) {
      held += is_held_back(run, service) ? 1 : 0;
      spare += run.units[service].phase == Phase::parked && is_spare(run, service) ? 1 : 0;
    }
    expect(moves + held > 0, place, "it has open units, but none can make progress");
    expect(run.phase_count(Phase::parked) == held + spare, place,
           "holds units back without stopping");
  }

  void check_rollover(const Run& run) {
    const Rollover& rollover = run.rollover;
    Place place{run};
    bool is_first = rollover.phase == RolloverPhase::none || is_final(run.status);
    expect(is_first || (!run.name.empty() && !run.services.empty()), place,
           "rolls over, but has no name or no service");
    if (is_final(run.status)) return;
    expect(rollover.step < step_count(canary_of(run)), place, "rolls over in a step too many");
    bool is_under_way = core::is_under_way(rollover.phase);
    expect(!is_under_way || run.status != RunStatus::serving, place,
           "serves before its rollover is done");
    uint32_t of_services = run.open_services + run.open_replica_sets;
    uint32_t open_gates = 0;
    for (const DynamicCalls& calls : run.dynamics)
      open_gates += is_gate(run, calls.first_unit) && !is_final(run.units[calls.first_unit].status);
    bool has_ended_tasks = run.has_result && run.open_units() == of_services + open_gates;
    expect(!is_under_way || has_ended_tasks, place, "rolls over before its tasks have ended");
    expect(rollover.reason.empty() || rollover.phase == RolloverPhase::reverting, place,
           "has a reason to fail, but does not revert");
    bool is_gated = rollover.phase == RolloverPhase::gated && rollover.gate != kNoNode;
    expect(!is_gated || (is_gate(run, rollover.gate) && !run.units[rollover.gate].dropped), place,
           "waits for a gate that is not there");
    bool is_owner = rollover.phase == RolloverPhase::done;
    if (!is_under_way && !is_owner) return;
    for (const auto& [id, other] : state_.runs) {
      if (&other == &run || other.name != run.name || is_final(other.status)) continue;
      expect(!is_under_way || !core::is_under_way(other.rollover.phase), place,
             "rolls over beside another rollover of its name");
      expect(!is_owner || other.rollover.phase != RolloverPhase::done, place,
             "has the traffic that another run of its name has");
    }
  }

  void check_workers() {
    expect(!state_.workers.empty() && state_.workers[0].is_up,
           "the engine's own machine is not up");
    std::set<std::string> names;
    for (const WorkerState& worker : state_.workers) {
      expect(are_sound(worker.info.gpus), "a worker has invalid GPUs");
      expect(!worker.is_up || !worker.is_disconnected, "a worker is disconnected and up");
      expect(!worker.is_draining || !worker.is_lost(), "a lost worker is draining");
      expect(names.insert(worker.info.name).second, "two workers have one name");
    }
  }

  void check_free_resources() {
    for (const WorkerState& worker : state_.workers) {
      const FreeResources& free = worker.free;
      expect(free.memory_free_bytes >= 0, "memory is over-committed");
      expect(free.long_milli <= worker.info.cpus_milli, "slots are over-committed by long tasks");
      expect(free.cpus_free_milli >= 0 || free.short_units > 0,
             "slots are over-committed by tasks that are not short");
      for (const auto& [name, milli] : free.custom_resources)
        if (milli < 0) expect(false, ("the resource " + name + " is over-committed").c_str());
      for (const FreeGpu& gpu : free.gpus)
        expect(gpu.milli_free >= 0 && gpu.memory_free_bytes >= 0, "a GPU is over-committed");
    }
    for (const auto& [id, run] : state_.runs) {
      for (const auto& [map, running] : run.map_running) {
        expect(running <= run.node(run.units[map].node).detail().limit, {run},
               "a map's limit is exceeded");
      }
    }
  }

  // Derived fields equal those of a rebuild.
  void check_derived() {
    State fresh = state_;
    rebuild_derived(fresh);
    expect(fresh.capacity == state_.capacity, "the capacity differs from the sum over the workers");
    for (size_t i = 0; i < state_.workers.size(); i++)
      expect(fresh.workers[i].free == state_.workers[i].free,
             "the free resources differ from the running units");
    expect(fresh.ready == state_.ready, "the ready heads differ from the ready units");
    expect(fresh.key_waiters == state_.key_waiters, "key waiters differ from units that wait");
    expect(computing_of(fresh) == computing_of(state_), "computing keys differ from their holders");
    for (const auto& [id, run] : state_.runs) {
      const Run& again = fresh.runs.at(id);
      Place place{run};
      expect(again.counts == run.counts, place, "counts differ");
      expect(again.phases == run.phases, place, "phases differ");
      expect(again.ready == run.ready, place, "ready units differ");
      expect(own_of(again) == own_of(run), place, "its own keys differ");
      expect(again.map_running == run.map_running, place, "running instances differ");
      expect(again.signal_waiters == run.signal_waiters, place, "signal waiters differ");
      expect(again.instances == run.instances, place, "instances differ");
      expect(again.dynamic_of == run.dynamic_of, place, "dynamic calls differ");
      expect(again.dynamic_units == run.dynamic_units, place, "extra nodes differ");
      expect(again.open_services == run.open_services, place, "open services differ");
      expect(again.services_up == run.services_up, place, "services that are up differ");
      expect(again.open_replica_sets == run.open_replica_sets, place, "replicated services differ");
      expect(again.failed_units == run.failed_units, place, "failed units differ");
      expect(without_dropped(again) == without_dropped(run), place, "tagged units differ");
      expect(again.cpus_used_milli == run.cpus_used_milli, place, "used slots differ");
      for (UnitId unit = 0; unit < run.units.size(); unit++) {
        Place of_unit{run, unit};
        expect(again.units[unit].key_scope == run.units[unit].key_scope, of_unit,
               "holds its key in the wrong scope");
        expect(again.units[unit].waits_on == run.units[unit].waits_on, of_unit, [&, &run = run] {
          return "waits on " + std::to_string(run.units[unit].waits_on) + " edges, of which " +
                 std::to_string(again.units[unit].waits_on) + " are open";
        });
        if (!run.units[unit].dropped) check_dependents(run, again, unit);
      }
    }
  }

  void check_dependents(const Run& run, const Run& again, UnitId unit) {
    if (is_final(run.units[unit].status)) return;
    std::vector<std::pair<UnitId, bool>> have;
    for_each_dependent(run, unit,
                       [&](UnitId dependent, bool guard) { have.emplace_back(dependent, guard); });
    std::sort(have.begin(), have.end());
    for_each_dependent(again, unit, [&](UnitId dependent, bool guard) {
      bool is_known = std::binary_search(have.begin(), have.end(), std::pair(dependent, guard));
      expect(is_known, {run, unit},
             [&] { return "does not know its dependent " + unit_name(run, dependent); });
    });
  }

  static std::vector<std::tuple<Digest, std::string_view, UnitId>> computing_of(
      const State& state) {
    std::vector<std::tuple<Digest, std::string_view, UnitId>> named;
    for (const auto& [number, unit] : state.computing.holders()) {
      const RunId& id = state.run_numbers.at(number);
      named.emplace_back(state.runs.at(id).units[unit].key, id, unit);
    }
    std::sort(named.begin(), named.end());
    return named;
  }

  static std::map<std::string, UnitId> without_dropped(const Run& run) {
    std::map<std::string, UnitId> tagged = run.tagged;
    std::erase_if(tagged, [&](const auto& each) { return run.units[each.second].dropped; });
    return tagged;
  }

  static std::vector<UnitId> own_of(const Run& run) {
    std::vector<UnitId> units;
    for (const auto& [number, unit] : run.computing.holders()) units.push_back(unit);
    return units;
  }

  const State& state_;
  std::string problem_;
};

}  // namespace

std::string check_invariants(const State& state) { return InvariantChecker(state).check(); }

}  // namespace flow::core
