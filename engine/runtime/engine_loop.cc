#include "engine/runtime/engine_loop.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "engine/base/engine_thread.hpp"
#include "engine/base/log.hpp"
#include "engine/base/size_units.hpp"
#include "engine/core/gangs.hpp"
#include "engine/core/rollover.hpp"
#include "engine/process/cgroup.hpp"
#include "engine/runs/detached_runs.hpp"
#include "engine/runtime/event_log.hpp"

namespace flow {

namespace {

constexpr const char* kGrowAfterVariable = "FLOW_GROW_AFTER";

}  // namespace

Result<int64_t> grow_after_ms() {
  const char* text = std::getenv(kGrowAfterVariable);
  if (text == nullptr || *text == '\0') return core::kGrowAfterMs;
  auto ms = parse_duration_ms(text);
  if (ms.ok()) return ms;
  return user_error(
      fmt::format("{} is `{}`, and is how long a gang runs with fewer ranks before it may restart "
                  "with more, as \"30s\" or \"10m\"",
                  kGrowAfterVariable, text));
}

Result<std::unique_ptr<EngineLoop>> EngineLoop::open(const EngineLoopOptions& options,
                                                     std::unique_ptr<Store> store) {
  std::unique_ptr<EngineLoop> engine_loop(new EngineLoop(options, std::move(store)));
  FLOW_TRY(engine_loop->recover_state());
  return engine_loop;
}

Result<std::unique_ptr<EngineLoop>> EngineLoop::start(const EngineLoopOptions& options,
                                                      std::unique_ptr<Store> store) {
  auto engine_loop = open(options, std::move(store));
  FLOW_TRY(engine_loop);
  FLOW_TRY((*engine_loop)->start_threads());
  return engine_loop;
}

Status EngineLoop::recover_state() {
  EngineComponents& parts = *parts_;
  auto recovered = recover(parts.store, parts.blobs);
  FLOW_TRY(recovered);
  parts.state = std::move(*recovered);
  uint64_t journal_bytes = 0;
  FLOW_TRY(
      parts.store.scan(Family::journal, "", "", [&](std::string_view, std::string_view records) {
        journal_bytes += records.size();
        return true;
      }));
  parts.group_commit.set_journal_bytes(journal_bytes);
  FLOW_TRY(parts.saved_clock.resume(parts.store, parts.state));
  core::EngineStarted started;
  started.epoch = parts.state.epoch + 1;
  started.cpus_milli = parts.options.jobs * 1000;
  int64_t simulated_bytes = parts.options.memory_bytes;
  started.memory_bytes = simulated_bytes > 0 ? simulated_bytes : usable_memory_bytes();
  started.custom_resources = parts.options.custom_resources;
  started.leads_workers = parts.options.leads_cluster;
  std::vector<TurnInput> first;
  first.push_back({PostedEvent{started}});
  if (parts.options.announced > 0)
    first.push_back({PostedEvent{core::WorkersAnnounced{parts.options.announced}}});
  parts.turn.run(std::move(first), false);
  if (auto error = stopped_by()) return *error;
  // A run that ended just before a crash is archived already, and only has to leave the state.
  std::vector<TurnInput> ended;
  for (const auto& [id, run] : parts.state.runs)
    if (core::is_final(run.status)) ended.push_back({PostedEvent{core::RunDeleted{id}}});
  parts.inbox.post(std::move(ended));
  return {};
}

Status EngineLoop::start_threads() {
  WorkerOptions worker;
  worker.state_dir = parts_->options.state_dir;
  worker.executor = parts_->options.executor;
  worker.executors_max = std::max(1, parts_->options.jobs);
  auto made = make_worker(worker, [parts = parts_.get()](std::vector<Report> reports) {
    parts->on_reports(std::move(reports));
  });
  FLOW_TRY(made);
  parts_->workers.set_own(std::move(*made));
  parts_->group_commit.start_thread();
  thread_ = engine_thread([parts = parts_.get()] {
    parts->inbox.run_turns();
    parts->group_commit.commit(false);
    parts->inbox.reject_rest();
    parts->active_runs.end_all(parts->stop.get());
    log_engine_stop();
  });
  return {};
}

/// The runs whose services the next engine adopts, since nobody has asked them to end.
std::set<RunId> EngineLoop::runs_left_to_next() const {
  std::set<RunId> left;
  for (const auto& [id, run] : parts_->state.runs) {
    const RunContext* context = parts_->active_runs.find(id);
    bool is_left = context != nullptr && !run.stopping && should_continue(run);
    if (is_left && (parts_->options.has_successor || context->is_detached)) left.insert(id);
  }
  return left;
}

void EngineLoop::shut_down() {
  parts_->gpus.stop_watch();  // it posts
  parts_->fronts->quit();
  parts_->inbox.quit();
  if (thread_.joinable()) thread_.join();
  parts_->group_commit.quit();
  parts_->workers.leave_services(runs_left_to_next());
  parts_->workers.end_own();  // ends every child
}

Result<bool> EngineLoop::post_and_wait(core::Event event, NamedBlobs blobs, MetadataRows metadata) {
  bool admitted = parts_->inbox.post_and_wait(
      {PostedEvent{std::move(event), std::move(blobs), std::move(metadata)}});
  if (auto error = stopped_by()) return *error;
  return admitted;
}

void EngineLoop::inspect(const std::function<void(const core::State&, InputResolver&)>& read) {
  parts_->inbox.post_and_wait(
      {StoreCallback{[&](Batch&, core::State& state) { read(state, parts_->resolver); }}});
}

void EngineLoop::collect(const std::function<void(const core::State&, Batch&)>& mark,
                         const std::function<void()>& sweep) {
  auto alone = parts_->pins.lock_for_collection();
  parts_->inbox.post_and_wait({StoreCallback{[&](Batch& batch, core::State& state) {
    GroupCommit& group_commit = parts_->group_commit;
    group_commit.commit(false);  // blobs of earlier inputs of this turn count as stored
    mark(state, batch);
    group_commit.request_snapshot();
    group_commit.commit(false);  // later inputs of this turn must not find blobs that are leaving
    if (!stopped_by()) sweep();
  }}});
}

void EngineLoop::put_metadata(std::string key, std::string value) {
  parts_->inbox.post(
      {StateCallback{[key = std::move(key), value = std::move(value)](Batch& batch, core::State&) {
        if (value.empty()) return batch.erase(Family::kv, key);
        batch.put(Family::kv, key, value);
      }}});
}

void EngineLoop::interrupt(const RunId& run, bool kill, const std::string& by) {
  if (!kill) return parts_->inbox.post({PostedEvent{core::StopRequested{run, by}}});
  parts_->inbox.post({StoreCallback{[parts = parts_.get(), run, by](Batch&, core::State& state) {
    parts->recorder.add_commands(core::kill_commands(state, run));
    parts->recorder.record_if_admitted(core::StopRequested{run, by}, parts->clock.now());
  }}});
}

// In one turn: a run that begins to serve meanwhile would be ended for good by the stop.
bool EngineLoop::outlive_client(const RunId& run) {
  bool is_continuing = false;
  bool is_done = parts_->inbox.post_and_wait(
      {StoreCallback{[&, parts = parts_.get()](Batch& batch, core::State& state) {
        auto found = state.runs.find(run);
        RunContext* context = parts->active_runs.find(run);
        if (found == state.runs.end() || context == nullptr) return;
        is_continuing = core::only_serves(state, found->second) && should_continue(found->second);
        if (!is_continuing) {
          parts->recorder.record_if_admitted(core::StopRequested{run}, parts->clock.now());
          return;
        }
        context->is_detached = true;
        put_kept_options(*context, batch);
        log::info("client has died, its run continues", {.run = run});
      }}});
  return is_done && is_continuing && !stopped_by();
}

void EngineLoop::await_rank_ends(std::chrono::milliseconds most) {
  auto until = std::chrono::steady_clock::now() + most;
  while (true) {
    bool is_one_missing = false;
    inspect([&](const core::State&, InputResolver&) {
      is_one_missing = parts_->gangs.has_unreported_ranks();
    });
    if (!is_one_missing || std::chrono::steady_clock::now() >= until) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

std::shared_ptr<Latch> EngineLoop::watch_rest(const RunId& run) {
  auto latch = std::make_shared<Latch>();
  parts_->inbox.post({StoreCallback{[parts = parts_.get(), run, latch](Batch&, core::State&) {
                        parts->active_runs.await_rest(run, latch);
                      }},
                      [latch](bool is_done) {
                        if (!is_done) latch->open(false);
                      }});
  return latch;
}

std::vector<std::string> disconnected_workers(EngineLoop& engine_loop, bool at_work) {
  std::vector<std::string> names;
  engine_loop.inspect([&](const core::State& state, InputResolver&) {
    names = disconnected_workers(state, at_work);
  });
  return names;
}

}  // namespace flow
