#include "engine/telemetry/engine_counters.hpp"

#include <set>
#include <utility>

namespace flow {

namespace {

constexpr double kMilli = 1000;

constexpr core::RunStatus kActiveStatuses[] = {core::RunStatus::pending, core::RunStatus::running,
                                               core::RunStatus::serving, core::RunStatus::waiting,
                                               core::RunStatus::interrupted};
constexpr core::RunStatus kEndStatuses[] = {core::RunStatus::succeeded, core::RunStatus::failed,
                                            core::RunStatus::cancelled};

void add_counts(const core::RunCounts& from, core::RunCounts& to) {
  to.succeeded += from.succeeded;
  to.cached += from.cached;
  to.failed += from.failed;
  to.ignored += from.ignored;
  to.skipped += from.skipped;
  to.cancelled += from.cancelled;
  to.pending += from.pending;
  to.ready += from.ready;
  to.running += from.running;
  to.waiting += from.waiting;
}

}  // namespace

void EngineCounters::count(const core::State& state, const core::Record& record,
                           std::span<const core::Command> commands) {
  const core::Event& event = record.event;
  if (std::holds_alternative<core::Assigned>(event)) {
    started_++;
  } else if (std::holds_alternative<core::AttemptSucceeded>(event)) {
    succeeded_++;
  } else if (const auto* failed = std::get_if<core::AttemptFailed>(&event)) {
    count_failure(state.runs.at(failed->id.run), failed->id.unit, failed->failure.cause);
  } else if (std::holds_alternative<core::AttemptWaiting>(event)) {
    waiting_++;
  } else if (std::holds_alternative<core::AttemptStopped>(event)) {
    stopped_++;
  } else if (std::holds_alternative<core::AttemptRequeued>(event)) {
    requeued_++;
  } else if (std::holds_alternative<core::RunSubmitted>(event)) {
    runs_submitted_++;
  } else if (std::holds_alternative<core::WorkerLost>(event) ||
             std::holds_alternative<core::WorkerJoined>(event) ||
             std::holds_alternative<core::GpuFailed>(event)) {
    count_losses(state, commands);
  }
  for (const core::Command& command : commands) {
    const auto* ended = std::get_if<core::RunEnded>(&command);
    if (ended != nullptr) count_ended_run(state.runs.at(ended->run));
  }
}

void EngineCounters::count_failure(const core::Run& run, core::UnitId unit, core::Cause cause) {
  failed_[static_cast<size_t>(cause)]++;
  if (!core::is_final(run.units[unit].status)) retries_[static_cast<size_t>(cause)]++;
}

// Attempts that the record itself ended, because their worker or GPU is gone.
void EngineCounters::count_losses(const core::State& state,
                                  std::span<const core::Command> commands) {
  std::set<std::pair<core::RunId, core::UnitId>> units;
  for (const core::Command& command : commands)
    if (const auto* changed = std::get_if<core::UnitChanged>(&command))
      units.insert({changed->run, changed->unit});
  for (const auto& [run, unit] : units) {
    const core::Run& of = state.runs.at(run);
    const core::Unit& u = of.units[unit];
    bool has_failed =
        u.detail && !u.detail->failed.empty() && u.detail->failed.back().attempt == u.attempts;
    if (has_failed) count_failure(of, unit, u.detail->failed.back().cause);
  }
}

void EngineCounters::count_ended_run(const core::Run& run) {
  runs_ended_[static_cast<size_t>(run.status)]++;
  add_counts(run.counts, tasks_ended_);
}

void EngineCounters::count_commit(size_t records, int64_t us) {
  records_ += records;
  commits_.add(us);
}

void EngineCounters::add_to(MetricText& out) const {
  out.counter("flow_runs_submitted_total", "Runs that were submitted.");
  out.add(runs_submitted_);
  out.counter("flow_runs_ended_total", "Runs that ended, by status.");
  for (core::RunStatus status : kEndStatuses)
    out.add({{"status", core::status_name(status)}}, runs_ended_[static_cast<size_t>(status)]);
  out.counter("flow_tasks_ended_total", "Tasks of runs that ended, by status.");
  out.add({{"status", "succeeded"}}, uint64_t{tasks_ended_.succeeded});
  out.add({{"status", "failed"}}, uint64_t{tasks_ended_.failed});
  out.add({{"status", "skipped"}}, uint64_t{tasks_ended_.skipped});
  out.add({{"status", "cancelled"}}, uint64_t{tasks_ended_.cancelled});
  out.counter("flow_tasks_cached_total", "Tasks of runs that ended whose results were cached.");
  out.add(uint64_t{tasks_ended_.cached});
  out.counter("flow_attempts_started_total", "Attempts that got their slots.");
  out.add(started_);
  out.counter("flow_attempts_ended_total",
              "Attempts that ended, by outcome; a requeued one had not begun.");
  uint64_t failed = 0;
  for (uint64_t count : failed_) failed += count;
  out.add({{"outcome", "succeeded"}}, succeeded_);
  out.add({{"outcome", "failed"}}, failed);
  out.add({{"outcome", "waiting"}}, waiting_);
  out.add({{"outcome", "stopped"}}, stopped_);
  out.add({{"outcome", "requeued"}}, requeued_);
  out.counter("flow_attempts_failed_total", "Attempts that failed, by cause.");
  for (size_t i = 1; i < kCauses; i++)
    out.add({{"cause", core::cause_name(static_cast<core::Cause>(i))}}, failed_[i]);
  out.counter("flow_retries_total", "Attempts that failed and are followed by another, by cause.");
  for (size_t i = 1; i < kCauses; i++)
    out.add({{"cause", core::cause_name(static_cast<core::Cause>(i))}}, retries_[i]);
  out.counter("flow_journal_records_total", "Records that were committed to the journal.");
  out.add(records_);
  out.histogram("flow_commit_duration_seconds", "Time to write a commit and make it durable.",
                commits_);
}

namespace {

void add_run_metrics(const core::State& state, MetricText& out) {
  std::array<uint64_t, static_cast<size_t>(core::RunStatus::interrupted) + 1> runs{};
  core::RunCounts tasks;
  uint64_t queued = 0, backing_off = 0;
  for (const auto& [id, run] : state.runs) {
    runs[static_cast<size_t>(run.status)]++;
    add_counts(run.counts, tasks);
    queued += run.phase_count(core::Phase::ready);
    backing_off += run.phase_count(core::Phase::backoff);
  }
  out.gauge("flow_runs", "Runs that have not ended, by status.");
  for (core::RunStatus status : kActiveStatuses)
    out.add({{"status", core::status_name(status)}}, runs[static_cast<size_t>(status)]);
  out.gauge("flow_tasks", "Tasks of runs that have not ended, by status.");
  const std::pair<const char*, uint32_t> by_status[] = {
      {"pending", tasks.pending}, {"ready", tasks.ready},         {"running", tasks.running},
      {"waiting", tasks.waiting}, {"succeeded", tasks.succeeded}, {"failed", tasks.failed},
      {"skipped", tasks.skipped}, {"cancelled", tasks.cancelled}};
  for (const auto& [status, count] : by_status) out.add({{"status", status}}, uint64_t{count});
  out.gauge("flow_queue_length", "Task instances that wait for a slot.");
  out.add(queued);
  out.gauge("flow_retries_waiting", "Task instances that wait for the time of their next attempt.");
  out.add(backing_off);
}

void add_worker_metrics(const core::State& state, MetricText& out) {
  uint64_t up = 0, draining = 0, disconnected = 0;
  int64_t cpus_milli = 0, cpus_free_milli = 0, memory = 0, memory_free = 0;
  uint64_t gpus = 0, gpus_failed = 0;
  double gpus_held = 0;
  for (size_t i = 0; i < state.workers.size(); i++) {
    const core::WorkerState& worker = state.workers[i];
    if (i > 0) {
      up += worker.takes_attempts() ? 1 : 0;
      draining += worker.is_up && worker.is_draining ? 1 : 0;
      disconnected += worker.is_disconnected ? 1 : 0;
    }
    if (worker.is_lost()) continue;
    cpus_milli += worker.info.cpus_milli;
    cpus_free_milli += worker.free.cpus_free_milli;
    memory += worker.info.memory_bytes;
    memory_free += worker.free.memory_free_bytes;
    gpus += worker.info.gpus.size();
    for (const Gpu& gpu : worker.info.gpus) gpus_failed += gpu.fault.empty() ? 0 : 1;
    for (const core::FreeGpu& gpu : worker.free.gpus)
      gpus_held += (kMilli - gpu.milli_free) / kMilli;
  }
  out.gauge("flow_workers", "Workers of the cluster, by status.");
  out.add({{"status", "up"}}, up);
  out.add({{"status", "draining"}}, draining);
  out.add({{"status", "disconnected"}}, disconnected);
  out.gauge("flow_cpu_slots", "CPU slots of the engine's machine and its workers.");
  out.add(static_cast<double>(cpus_milli) / kMilli);
  out.gauge("flow_cpu_slots_held", "CPU slots that attempts hold.");
  out.add(static_cast<double>(cpus_milli - cpus_free_milli) / kMilli);
  out.gauge("flow_slot_memory_bytes",
            "Memory of the engine's machine and its workers for attempts.");
  out.add(static_cast<double>(memory));
  out.gauge("flow_slot_memory_held_bytes", "Memory that attempts have requested.");
  out.add(static_cast<double>(memory - memory_free));
  out.gauge("flow_gpus", "GPUs of the engine's machine and its workers.");
  out.add(gpus);
  out.gauge("flow_gpus_held", "GPUs that attempts hold; a share of a GPU counts as its fraction.");
  out.add(gpus_held);
  out.gauge("flow_gpus_failed", "GPUs that have failed and get no attempts.");
  out.add(gpus_failed);
}

}  // namespace

void add_state_metrics(const core::State& state, MetricText& out) {
  add_run_metrics(state, out);
  add_worker_metrics(state, out);
}

}  // namespace flow
