// The essential part of a state as text: two states are equal if their texts are.
#pragma once
#include <sstream>
#include <string>

#include "engine/core/core.hpp"

namespace flow::core {

inline void dump_unit(std::ostringstream& out, const Run& run, UnitId unit) {
  const Unit& u = run.units[unit];
  out << "  " << unit << ' ' << unit_name(run, unit) << ' ' << status_name(u.status) << " phase "
      << int(u.phase) << " side " << int(u.branch) << " hold " << int(u.key_scope) << " flags "
      << u.cached << u.resolved << u.forced << u.satisfied << u.expanded << u.dropped
      << u.gives_missing << " returns " << u.requeues << " attempts " << u.attempts << " timer "
      << u.timer_serial << " expected " << u.expected_us << " host " << u.worker << " epoch "
      << u.epoch << " key " << u.key.hex() << " result " << u.result.hex() << " from " << u.started
      << " to " << u.finished;
  if (u.phase == Phase::running) out << " assigned " << u.assigned;
  if (u.detail) {
    const UnitDetail& e = *u.detail;
    out << " cause " << cause_name(e.failure.cause) << " \"" << e.failure.message << "\" spent "
        << e.failures << '/' << e.ooms << '/' << e.infra << " for " << e.waiting_for << ' '
        << e.wait_name << " retry at " << e.retry_at << " url " << e.url << " by " << e.computed_by;
    for (const std::string& uuid : e.gpus) out << " on " << uuid;
    for (const Placement& rank : e.others) {
      out << " rank at " << rank.worker;
      for (const std::string& uuid : rank.gpus) out << " on " << uuid;
    }
    out << " share " << e.share.cpus_milli << ' ' << e.share.memory_bytes
        << (e.is_resizing ? " growing" : "") << " grew from " << e.grew_from;
    for (const FailedAttempt& failed : e.failed)
      out << " failed " << failed.attempt << " on " << failed.worker << ' '
          << cause_name(failed.cause);
    for (const Death& death : e.deaths)
      out << " death on " << death.worker << " at " << death.record << (death.is_gpu ? " gpu" : "")
          << " beside " << death.co_located;
    out << (e.runs_alone ? " alone" : "") << (e.was_ready ? " was ready" : "") << " at "
        << e.ready_at << " restarts " << e.restarts << '/' << e.deaths_in_row << " replicas "
        << e.replicas_wanted;
    for (const auto& [name, wait] : e.waits) {
      out << " wait " << name << ' ' << wait.first << (wait.second ? " expired" : "");
    }
  }
  out << '\n';
}

inline std::string dump(const State& state) {
  std::ostringstream out;
  out << "epoch " << state.epoch << " sequence " << state.sequence << " at " << state.at
      << (state.leads_workers ? " leads" : "")
      << (state.restarts_services ? " restarts services" : "") << " announced " << state.announced
      << '\n';
  for (const WorkerState& worker : state.workers) {
    out << "host " << worker.info.name
        << (worker.is_up             ? ""
            : worker.is_disconnected ? " awaited"
                                     : " lost")
        << (worker.is_draining ? " draining" : "") << " cpus " << worker.info.cpus_milli
        << " memory " << worker.info.memory_bytes << " changed " << worker.changed;
    for (const Gpu& gpu : worker.info.gpus)
      out << " gpu " << gpu.uuid << ' ' << gpu.name << ' ' << gpu.memory_bytes << ' ' << gpu.fault
          << (gpu.is_dead ? " dead" : "");
    for (const auto& [name, value] : worker.info.labels) out << ' ' << name << '=' << value;
    for (const FailedUnit& failed : worker.failures)
      out << " failure of " << failed.run << ' ' << failed.unit << ' ' << failed.def;
    out << " aside until " << worker.aside_until << " timer " << worker.aside_serial;
    out << '\n';
  }
  for (const GpuPresence& presence : state.presences) {
    out << "there " << presence.worker << ' ' << presence.from << '-' << presence.until;
    for (const auto& [model, count] : presence.gpus) out << ' ' << count << ' ' << model;
    out << '\n';
  }
  for (const auto& [id, run] : state.runs) {
    out << "run " << id << ' ' << run.name << ' ' << status_name(run.status) << ' ' << run.submitted
        << '-' << run.finished << " jobs " << run.jobs << " flags " << run.fail_fast << run.fresh
        << run.stopping << run.stop_requested << run.cancelling << run.ending << run.gathering
        << run.has_result << ' ' << run.result.hex() << '\n';
    const Rollover& rollover = run.rollover;
    if (rollover != Rollover{})
      out << " rollover from " << rollover.previous << " phase " << int(rollover.phase) << " step "
          << rollover.step << " timer " << rollover.serial << " since " << rollover.began << ' '
          << rollover.reason << '\n';
    for (const auto& [name, value] : run.signals)
      out << " signal " << name << ' ' << value.hex() << '\n';
    for (const DynamicCalls& calls : run.dynamics) {
      out << " calls of " << calls.unit << " at " << calls.first_node << ' ' << calls.first_unit
          << '\n';
    }
    for (const auto& [unit, tag] : run.tags) out << " tag " << unit << ' ' << tag << '\n';
    out << " durations";
    for (uint32_t us : run.durations_us) out << ' ' << us;
    for (const auto& [def, worker] : run.failed_defs)
      out << " failed def " << def << " on " << worker;
    out << '\n';
    for (UnitId unit = 0; unit < run.units.size(); unit++) dump_unit(out, run, unit);
  }
  return out.str();
}

/// The state after a snapshot is written and read.
inline State restored(const State& state) {
  State copy;
  copy.epoch = state.epoch;
  copy.sequence = state.sequence;
  copy.at = state.at;
  copy.workers = state.workers;
  copy.leads_workers = state.leads_workers;
  copy.announced = state.announced;
  copy.restarts_services = state.restarts_services;
  copy.presences = state.presences;
  copy.presences_since = state.presences_since;
  for (const auto& [id, run] : state.runs) {
    Run& r = copy.runs[id];
    r.id = run.id;
    r.name = run.name;
    r.rollover = run.rollover;
    r.status = run.status;
    r.submitted = run.submitted;
    r.finished = run.finished;
    r.plan_digest = run.plan_digest;
    r.plan = run.plan;
    r.units = run.units;
    for (Unit& u : r.units) {  // derived
      u.key_scope = KeyScope::none;
      u.waits_on = 0;
    }
    for (const DynamicCalls& calls : run.dynamics) {
      r.dynamics.push_back({calls.unit, calls.fragment_digest, calls.fragment, calls.first_node,
                            calls.first_unit, Value()});
    }
    r.signals = run.signals;
    r.tags = run.tags;
    r.durations_us = run.durations_us;
    r.failed_defs = run.failed_defs;
    r.result = run.result;
    r.has_result = run.has_result;
    r.jobs = run.jobs;
    r.fail_fast = run.fail_fast;
    r.fresh = run.fresh;
    r.stopping = run.stopping;
    r.stop_requested = run.stop_requested;
    r.cancelling = run.cancelling;
    r.ending = run.ending;
    r.gathering = run.gathering;
  }
  rebuild_derived(copy);
  return copy;
}

}  // namespace flow::core
