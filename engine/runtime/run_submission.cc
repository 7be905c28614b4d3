// How runs come in: new, taken up again, or going on with other code.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/base/clock.hpp"
#include "engine/base/latch.hpp"
#include "engine/blobs/folder.hpp"
#include "engine/runs/run_archive.hpp"
#include "engine/runtime/engine_loop.hpp"
#include "engine/runtime/event_log.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/submission/prepare.hpp"
#include "engine/submission/run_inputs.hpp"

namespace flow {

namespace {

std::string already_active(const core::Run& run) {
  return fmt::format("the run {} is {} already: it goes on in the process that writes this state",
                     run.id, core::status_name(run.status));
}

}  // namespace

Result<std::optional<core::State>> EngineLoop::archived_run(const RunId& id) const {
  auto row = store_->get(Family::kv, archive_key(id));
  FLOW_TRY(row);
  if (!row->has_value()) return std::optional<core::State>();
  auto run = load_archived_run(**row, blobs_);
  FLOW_TRY(run);
  return std::optional(std::move(*run));
}

Status EngineLoop::submit(Prepared prepared, int32_t jobs) {
  return add_run(std::move(prepared), jobs, false);
}

Status EngineLoop::replace(Prepared prepared, int32_t jobs) {
  return add_run(std::move(prepared), jobs, true);
}

Status EngineLoop::add_run(Prepared prepared, int32_t jobs, bool replaces) {
  RunContext& context = prepared.context;
  RunId id = context.record.id;
  core::RunSubmitted event;
  event.run = id;
  event.name = context.record.name;
  event.plan_digest = context.record.plan_digest;
  event.plan = std::move(prepared.plan);
  hide_secrets(*event.plan, *context.environment);
  event.jobs = jobs;
  event.fresh = context.record.fresh;
  event.fail_fast = context.record.fail_fast;
  std::map<std::string, Digest> signals;  // what a replaced run was sent stays sent
  std::optional<core::State> archived;
  if (replaces) {
    auto found = archived_run(id);
    FLOW_TRY(found);
    archived = std::move(*found);
    if (archived) signals = archived->runs.at(id).signals;
  }
  std::string problem;
  bool is_admitted = false;
  auto latch = std::make_shared<Latch>();
  Input input;
  input.event = std::move(event);
  input.done = [&, this](bool admitted) {
    is_admitted = admitted;
    // Attempts are counted from 1 again: theirs is no folder that an old one left.
    if (admitted && replaces) (void)remove_tree(options_.state_dir + "/scratch/" + id);
  };
  input.blobs.emplace_back(context.record.plan_digest, std::move(prepared.plan_bytes));
  input.blobs.emplace_back(context.record.bundle_digest, *context.bundle);
  if (!context.request.empty()) input.kv.emplace_back(request_key(context.request), id);
  if (!prepared.inputs.empty()) input.kv.emplace_back(inputs_key(id), std::move(prepared.inputs));
  input.control = [&, this](Batch& batch, core::State& state) {
    auto old = state.runs.find(id);
    if (old != state.runs.end()) {
      core::Event drop = core::RunDeleted{id};
      if (!replaces || !core::admit(state, drop)) {
        problem = already_active(old->second);
        return;
      }
      signals = old->second.signals;
      record(std::move(drop), clock_.now());
    } else if (replaces && !archived) {  // it ended meanwhile
      auto found = archived_run(id);
      if (found.ok() && *found) signals = (*found)->runs.at(id).signals;
    }
    if (replaces) erase_run_data(id, batch);
    contexts_.insert_or_assign(id, std::move(context));
  };
  Input sent;
  sent.has_event = false;
  sent.control = [&, this](Batch&, core::State& state) {
    for (const auto& [name, value] : signals) {
      core::Event signal = core::SignalReceived{id, name, value};
      if (core::admit(state, signal)) record(std::move(signal), clock_.now());
    }
  };
  std::vector<Input> inputs;
  inputs.push_back(std::move(input));
  inputs.push_back(std::move(sent));
  inputs.back().done = [latch](bool admitted) { latch->open(admitted); };
  post(std::move(inputs));
  latch->wait();
  if (auto error = stopped_by()) return *error;
  if (!problem.empty()) return user_error(problem);
  if (!is_admitted) return internal_error("the engine refused the run");
  return {};
}

/// What a run leaves beside the state. Its new attempts are counted from 1 again, and its steps and
/// checkpoints are found by their keys.
void EngineLoop::erase_run_data(const RunId& run, Batch& batch) {
  batch.erase(Family::kv, archive_key(run));
  batch.erase(Family::kv, inputs_key(run));
  std::string prefix = log_prefix(run);
  Status scanned =
      store_->scan(Family::logs, prefix, prefix, [&](std::string_view key, std::string_view) {
        batch.erase(Family::logs, std::string(key));
        return true;
      });
  if (!scanned.ok()) fail(scanned.error());
}

namespace {

/// What a run that comes back says of workers is said of those of the same name now; of those that
/// there are no more it is forgotten.
void rename_workers(core::Run& run, const std::vector<core::WorkerState>& old,
                    const std::vector<core::WorkerState>& now) {
  auto remapped = [&](core::WorkerId worker) -> core::WorkerId {
    if (worker == 0 || worker >= old.size()) return 0;
    auto same = std::find_if(now.begin() + 1, now.end(), [&](const core::WorkerState& each) {
      return each.info.name == old[worker].info.name;
    });
    return same == now.end() ? core::WorkerId{0} : static_cast<core::WorkerId>(same - now.begin());
  };
  for (core::Unit& unit : run.units) {
    unit.worker = remapped(unit.worker);
    bool names_workers =
        unit.detail && (!unit.detail->others.empty() || !unit.detail->failed.empty() ||
                        !unit.detail->deaths.empty());
    if (!names_workers) continue;
    auto detail = std::make_shared<core::UnitDetail>(*unit.detail);
    for (core::Placement& rank : detail->others) rank.worker = remapped(rank.worker);
    auto is_gone = [&](const auto& each) { return each.worker > 0 && remapped(each.worker) == 0; };
    std::erase_if(detail->failed, is_gone);
    std::erase_if(detail->deaths, is_gone);
    for (core::FailedAttempt& failed : detail->failed) failed.worker = remapped(failed.worker);
    for (core::Death& death : detail->deaths) death.worker = remapped(death.worker);
    unit.detail = std::move(detail);
  }
}

}  // namespace

bool EngineLoop::is_being_interrupted(const RunId& id) const {
  auto run = state_.runs.find(id);
  if (run == state_.runs.end() || !contexts_.contains(id)) return false;
  const core::Run& r = run->second;
  bool is_over = core::is_final(r.status) || r.status == core::RunStatus::interrupted;
  return !is_over && r.stopping && !r.cancelling && !r.ending;
}

Result<bool> EngineLoop::await_interrupted(const RunId& id) {
  bool has_waited = false;
  auto latch = std::make_shared<Latch>();
  Input look;
  look.has_event = false;
  look.control = [&, this](Batch&, core::State&) {
    has_waited = is_being_interrupted(id);
    if (has_waited) interruptions_.emplace(id, latch);
  };
  look.done = [&, latch](bool is_done) {
    if (!has_waited || !is_done) latch->open(is_done);
  };
  post(std::move(look));
  latch->wait();
  if (auto error = stopped_by()) return *error;
  return has_waited;
}

// They hear of it when this turn is durable, or when the engine stops.
void EngineLoop::end_interruptions() {
  for (auto each = interruptions_.begin(); each != interruptions_.end();) {
    if (is_being_interrupted(each->first)) {
      ++each;
      continue;
    }
    open_batch_.outcomes.emplace_back(
        [latch = each->second](bool is_done) { latch->open(is_done); }, true);
    each = interruptions_.erase(each);
  }
}

Status EngineLoop::resume(RunContext context, const std::string& task) {
  RunId id = context.record.id;
  std::string request = context.request;
  auto has_waited = await_interrupted(id);
  FLOW_TRY(has_waited);
  // A folded run comes back into the state first; the snapshot that this turn commits makes it
  // durable.
  auto archived = archived_run(id);
  FLOW_TRY(archived);
  std::optional<core::State> old = std::move(*archived);
  if (task.empty()) drop_damaged(id, old);
  auto inputs = inputs_of(*store_, id);
  FLOW_TRY(inputs);
  FLOW_TRY(restore_inputs(*inputs, *store_, blobs_));
  std::string problem;
  auto latch = std::make_shared<Latch>();
  Input load;
  load.has_event = false;
  core::UnitId unit = kNoNode;
  MissingOutputs missing;
  std::shared_ptr<RunListener> listener = context.listener;
  bool was_over = false;
  load.control = [&, this](Batch& batch, core::State& state) {
    if (!old && !state.runs.contains(id)) {  // it ended meanwhile
      auto again = archived_run(id);
      if (again.ok()) old = std::move(*again);
    }
    if (old && !state.runs.contains(id)) {
      rename_workers(old->runs.at(id), old->workers, state.workers);
      state.runs.emplace(id, std::move(old->runs.at(id)));
      core::rebuild_derived(state);
      batch.erase(Family::kv, archive_key(id));
      snapshot_due_ = true;
    }
    auto run = state.runs.find(id);
    if (run == state.runs.end()) {
      problem = fmt::format("the run {} is not in this state any more", id);
      return;
    }
    core::RunStatus status = run->second.status;
    was_over = core::is_final(status) && !*has_waited;
    // What workers still run of an engine that died goes on, and the run waits for who takes it up.
    bool is_left = run->second.stopping && !contexts_.contains(id);
    if (!core::is_final(status) && status != core::RunStatus::interrupted && !is_left) {
      problem = already_active(run->second);
      return;
    }
    if (!task.empty()) {
      std::vector<std::string> names;
      for (core::UnitId u = 0; u < run->second.units.size(); u++) {
        names.push_back(InputResolver::unit_name(run->second, u));
        if (names.back() == task) unit = u;
      }
      if (unit == kNoNode) {
        std::string near = nearest_name(task, names);
        problem = fmt::format("the run {} has no task `{}`{}", id, task,
                              near.empty() ? "" : fmt::format(" (did you mean `{}`?)", near));
        return;
      }
    }
    bool at_rest = core::is_final(status) || status == core::RunStatus::interrupted;
    if (task.empty() && at_rest) missing = find_missing_outputs(run->second);
    if (!missing.calls.empty())
      context.listener = nullptr;  // it hears of the run when that goes on
    contexts_.insert_or_assign(id, std::move(context));
  };
  load.done = [latch](bool ok) { latch->open(ok); };
  post(std::move(load));
  latch->wait();
  if (auto error = stopped_by()) return *error;
  if (!problem.empty()) return user_error(problem);
  if (!missing.calls.empty()) {
    FLOW_TRY(rerun_dynamic_tasks(id, missing));
    inspect([&, this](const core::State&, InputResolver&) {
      if (RunContext* found = this->context_of(id)) found->listener = listener;
    });
  }
  core::RetryRequested event;
  event.run = id;
  event.has_unit = unit != kNoNode;
  event.unit = event.has_unit ? unit : 0;
  event.lost = std::move(missing.results);
  std::vector<std::pair<std::string, std::string>> kv;
  if (!request.empty()) kv.emplace_back(request_key(request), id);
  auto admitted = post_and_wait(event, {}, std::move(kv));
  FLOW_TRY(admitted);
  // Of one that came to its end in between, the listener hears so.
  if (!*admitted && task.empty() && !was_over) return {};
  if (!*admitted) {
    return user_error(
        task.empty()
            ? fmt::format("the run {} has nothing to resume", id)
            : fmt::format("`{}` is still running or waiting: it can run again after it has ended",
                          task));
  }
  return {};
}

}  // namespace flow
