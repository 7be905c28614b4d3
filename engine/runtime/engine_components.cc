#include "engine/runtime/engine_components.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/worker/gpu_discovery.hpp"

namespace flow {

namespace {

StateClock::Source clock_source(const EngineLoopOptions& options) {
  if (!options.clock) return StateClock::machine();
  return {options.clock, options.clock};
}

}  // namespace

EngineComponents::EngineComponents(const EngineLoopOptions& engine_options,
                                   std::unique_ptr<Store> owned)
    : options(engine_options),
      owned_store(std::move(owned)),
      store(*owned_store),
      blobs(store, options.state_dir),
      clock(clock_source(options)),
      blob_directory(std::make_shared<cluster::BlobDirectory>()),
      builder(options.builder ? options.builder : std::make_shared<Builder>(options.executor)),
      inbox(inbox_hooks(), stop),
      fronts(make_fronts()),
      telemetry(options.span_exporter,
                [this](const core::RunId& run) { return traceparent_of(run); }),
      turn_blobs(blobs, commits, stop),
      resolver([this](const Digest& digest) { return turn_blobs.read(digest); }),
      cache(store, commits),
      active_runs(state),
      feed(state, clock, active_runs, commits.open.events),
      recorder(state, commits.open, turn_blobs, resolver, feed, telemetry),
      functions(state, *builder, inbox, recorder, resolver, active_runs),
      queries(
          state, recorder, turn_blobs, cache, resolver, feed, stop,
          {[this](const core::RunId& run, core::UnitId unit) { functions.request_tags(run, unit); },
           [this](const core::RunId& run, core::UnitId unit) {
             functions.request_resources(run, unit);
           }}),
      logs(state),
      metrics(state, store, inbox, logs, feed, stop),
      stored_runs(state, active_runs, store, blobs, stop),
      gangs(
          state, clock, workers,
          [this](core::Event event) { recorder.record_if_admitted(std::move(event), clock.now()); },
          [this](const core::RunId& run) {
            const RunContext* context = active_runs.find(run);
            return context != nullptr ? context->grace_ms : RunContext().grace_ms;
          }),
      orders(state, store, active_runs, resolver, turn_blobs, workers, inbox, stop, telemetry,
             options.encrypts, options.state_dir),
      effects(state, store, orders, workers, native, timers, active_runs, inbox, *fronts,
              options.state_dir, options.on_run_ended),
      commit_steps(orders, feed, effects, workers, inbox),
      group_commit(store, state, commits, stop, commit_steps, telemetry, options.state_dir),
      saved_clock(clock),
      scheduling(state, recorder, queries, resolver, *blob_directory, options.grow_after_ms),
      membership(state, gangs, !options.is_closed, membership_hooks()),
      run_updates(clock, active_runs, feed, stored_runs, logs, metrics, gangs, timers),
      turn(state, clock, saved_clock, commits.open, recorder, turn_blobs, logs, metrics, gangs,
           membership, active_runs, scheduling, orders, run_updates, group_commit),
      reports(gangs, clock, workers, stop,
              [this](const Report& report) { feed.publish_progress(report); }),
      missing_results(inbox, recorder, resolver, turn_blobs, blobs, stop),
      submission(inbox, recorder, turn_blobs, stored_runs, active_runs, missing_results,
                 group_commit, workers, store, blobs, stop, options.state_dir),
      gpus(gpu_hooks()),
      native(options.jobs, [this](std::vector<Report> all) { on_reports(std::move(all)); }) {}

void EngineComponents::on_reports(std::vector<Report> all) {
  std::vector<TurnInput> inputs;
  inputs.reserve(all.size());
  for (Report& report : all) inputs.push_back(reports.input_of(std::move(report), ""));
  inbox.post_or_turn(std::move(inputs));
}

std::string EngineComponents::traceparent_of(const core::RunId& run) {
  const RunContext* context = active_runs.find(run);
  if (context == nullptr) return "";
  for (const auto& [name, value] : *context->environment)
    if (name == "TRACEPARENT") return value;
  return "";
}

Inbox::Hooks EngineComponents::inbox_hooks() {
  return {
      .turn =
          [this](std::vector<TurnInput> inputs, bool with_timers) {
            if (group_commit.is_written()) group_commit.await();
            if (with_timers) std::ranges::move(due_inputs(), std::back_inserter(inputs));
            turn.run(std::move(inputs), true);
          },
      .has_work = [this] { return group_commit.has_work() || !queries.empty(); },
      .next_due = [this] { return std::min(timers.next_due(), gangs.next_report_at()); },
      .now = [this] { return clock.now(); },
  };
}

std::shared_ptr<FrontControl> EngineComponents::make_fronts() {
  auto post = [this](core::Event event) { inbox.post({PostedEvent{std::move(event)}}); };
  if (options.fronts) return options.fronts(std::move(post));
  return std::make_shared<ServiceFronts>(std::move(post));
}

std::vector<TurnInput> EngineComponents::due_inputs() {
  core::Time now = clock.now();
  std::vector<TurnInput> due = timers.take_due(now);
  for (core::AttemptId& id : gangs.take_due(now)) {
    due.push_back({StateCallback{
        [this, id = std::move(id)](Batch&, core::State&) { gangs.report_due_failure(id); }}});
  }
  return due;
}

// Workers that this process starts get their shares from it, so they need no notes.
WorkerMembership::Hooks EngineComponents::membership_hooks() {
  return {
      .post = [this](TurnInput input) { inbox.post(std::move(input)); },
      .record =
          [this](core::Event event) { recorder.record_if_admitted(std::move(event), clock.now()); },
      .after_effects =
          [this](std::function<void()> effect) { group_commit.after_effects(std::move(effect)); },
  };
}

GpuInventory::Hooks EngineComponents::gpu_hooks() {
  return {
      .discover = [this] { return find_gpus(options.executor); },
      .publish = [this](const std::vector<Gpu>& found) -> Status {
        inbox.post_and_wait({PostedEvent{core::GpusFound{found}}});
        if (auto error = stop.get()) return *error;
        return {};
      },
      .watch = [this](const std::vector<Gpu>& found,
                      GpuWatch::OnError on_error) -> std::shared_ptr<void> {
        return std::make_shared<GpuWatch>(
            options.executor, found, std::move(on_error), [](const std::string&) {},
            options.gpu_samples);
      },
      .on_error =
          [this](const std::string& uuid, const GpuError& error) {
            inbox.post({PostedEvent{core::GpuFailed{0, uuid, error.fault, error.is_dead}}});
          },
  };
}

}  // namespace flow
