// Acts, after the commit: attempts start and stop, watchers hear of changes, finished runs fold.
// And what workers report.
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/clock.hpp"
#include "engine/driver/driver.hpp"
#include "engine/driver/fold.hpp"
#include "engine/driver/info.hpp"
#include "engine/store/keys.hpp"

namespace flow {

// What earlier attempts left may be in this very turn's batch: a later attempt's order is made
// after the commit. So is that of a native task, which starts on the spot.
bool Driver::can_stage(const core::AttemptId& id) const {
  auto run = state_.runs.find(id.run);
  if (run == state_.runs.end() || id.unit >= run->second.units.size()) return false;
  const core::Unit& unit = run->second.units[id.unit];
  return unit.attempts == 1 && !(unit.extra && !unit.extra->waits.empty()) &&
         Resolver::def_of(run->second, id.unit)->kind != TaskKind::native;
}

void Driver::stage_starts() {
  if (!worker_) return;
  std::vector<AttemptOrder> orders;
  orders.reserve(acts_.size());
  std::erase_if(acts_, [&](const core::Command& act) {
    const auto* start = std::get_if<core::StartAttempt>(&act);
    if (start == nullptr || !can_stage(start->id)) return false;
    if (auto order = make_order(start->id)) orders.push_back(std::move(*order));
    return true;
  });
  if (!orders.empty()) worker_->stage(std::move(orders));
}

/// An interrupted run's attempts may come to a point where they can be taken up again; a cancelled
/// run's, and those that only a service's end is asked of, are told to end.
bool Driver::is_interrupted(const core::StopAttempt& stop) const {
  auto run = state_.runs.find(stop.id.run);
  if (stop.kill || run == state_.runs.end() || stop.id.unit >= run->second.units.size())
    return false;
  return run->second.stopping && !run->second.cancelling &&
         Resolver::def_of(run->second, stop.id.unit)->kind != TaskKind::service;
}

void Driver::perform(const std::vector<core::Command>& acts) {
  std::vector<AttemptOrder> orders;
  std::vector<RunId> ended;
  for (const core::Command& act : acts) {
    if (const auto* start = std::get_if<core::StartAttempt>(&act)) {
      if (auto order = make_order(start->id)) orders.push_back(std::move(*order));
    } else if (const auto* stop = std::get_if<core::StopAttempt>(&act)) {
      native_.stop(stop->id);
      if (is_interrupted(*stop)) {
        worker_->interrupt(stop->id);
      } else {
        worker_->stop(stop->id, stop->kill);
      }
    } else if (const auto* saved = std::get_if<core::AckSaved>(&act)) {
      worker_->ack_saved(saved->id, saved->name, true);
    } else if (const auto* timer = std::get_if<core::SetTimer>(&act)) {
      timers_.emplace(timer->at, *timer);
    } else if (const auto* unit = std::get_if<core::UnitChanged>(&act)) {
      notify_unit(unit->run, unit->unit);
    } else if (const auto* run = std::get_if<core::RunChanged>(&act)) {
      notify_run(run->run);
    } else if (const auto* end = std::get_if<core::RunEnded>(&act)) {
      ended.push_back(end->run);
    }
  }
  std::vector<AttemptOrder> native;
  auto is_native = [](const AttemptOrder& order) { return order.kind == TaskKind::native; };
  for (AttemptOrder& order : orders) {
    if (is_native(order)) native_.start(order, order.task_name);
  }
  std::erase_if(orders, is_native);
  if (!orders.empty()) worker_->start(std::move(orders));
  for (const RunId& run : ended) {
    // Its rows and its frozen form are committed: it leaves the state, and its watchers may go.
    Input drop;
    drop.event = core::RunDeleted{run};
    std::shared_ptr<RunListener> listener;
    if (RunMeta* found = meta(run)) listener = found->listener;
    drop.done = [this, run, listener](bool) {
      tell();
      metas_.erase(run);
      if (listener) listener->on_end();
    };
    std::vector<Input> inputs;
    inputs.push_back(std::move(drop));
    post(std::move(inputs));
  }
}

std::optional<AttemptOrder> Driver::make_order(const core::AttemptId& id) {
  auto found = state_.runs.find(id.run);
  RunMeta* run_meta = meta(id.run);
  if (found == state_.runs.end() || run_meta == nullptr) return std::nullopt;
  const core::Run& run = found->second;
  const core::Unit& unit = run.units[id.unit];
  if (unit.status != core::UnitStatus::running || core::current_attempt(run, id.unit) != id) {
    return std::nullopt;
  }
  const TaskDef& def = *Resolver::def_of(run, id.unit);
  AttemptOrder order;
  order.id = id;
  order.task = Resolver::unit_name(run, id.unit);
  order.task_name = def.name;
  order.kind = def.kind;
  order.bundle = run_meta->row.bundle_digest;
  order.bundle_bytes = run_meta->bundle;
  order.ordinal = def.ordinal;
  order.resources = def.resources;
  core::ReadyClass needs = core::needs_of(state_, run, id.unit);
  order.resources.cpus_milli = needs.cpus_milli;
  order.resources.memory_bytes = needs.memory_bytes;
  order.timeout_ms = def.timeout_ms;
  order.grace_ms = run_meta->grace_ms;
  order.stage_copy = def.stage_copy;
  if (def.kind == TaskKind::shell) {
    order.shell = std::shared_ptr<const ShellSpec>(run.plan, &def.shell);
    order.place = def.file + ":" + std::to_string(def.line);
  }
  order.service = def.service;
  order.named_args = run.node(unit.node).named_args;
  order.environment = run_meta->environment;
  order.seed = Resolver::seed(run, id.unit, 0);
  for (const EnvEntry& entry : def.env) {
    if (!entry.from_submitter) {
      order.env.emplace_back(entry.name, entry.value);
      continue;
    }
    for (const auto& [name, value] : *run_meta->environment) {
      if (name != entry.value) continue;
      order.env.emplace_back(entry.name, value);
      order.hide.push_back(value);
    }
  }
  auto prepared = prepared_.extract(unit.key);
  if (prepared) {
    order.args = std::move(prepared.mapped());
  } else {
    auto inputs = resolver_.inputs(run, id.unit);
    if (!inputs.ok()) {
      post_failure(id, core::Cause::staging, inputs.error().message);
      return std::nullopt;
    }
    order.args = std::move(inputs->args_bytes);
  }
  attach_content(order);
  if (unit.attempts > 1 || (unit.extra && !unit.extra->waits.empty()))
    attach_progress(run, unit, order);
  for (const auto& [name, digest] : run.signals) {
    auto bytes = content(digest);
    if (bytes.ok()) order.signals.emplace_back(name, std::move(*bytes));
  }
  return order;
}

// The small blobs that the arguments need travel with the order; large ones are files the executor
// finds.
void Driver::attach_content(AttemptOrder& order) {
  constexpr uint8_t kTagByte =
      0xc0;  // CBOR tags start at this major type: without one there is no blob
  bool may_hold_blob = std::any_of(order.args.begin(), order.args.end(), [](char c) {
    return (static_cast<uint8_t>(c) & 0xe0) == kTagByte;
  });
  if (!may_hold_blob) return;
  auto args = decode_value(order.args);
  FLOW_CHECK(args.ok());
  std::vector<Digest> needed;
  collect_blobs(*args, needed);
  for (const Digest& digest : needed) {
    auto staged = staged_.find(digest);
    if (staged != staged_.end() && staged->second.size() <= kInlineBlobMax) {
      order.blobs.emplace_back(digest, staged->second);
      continue;
    }
    auto row = store_->get(Family::blobs, digest.view());
    if (row.ok() && row->has_value()) order.blobs.emplace_back(digest, std::move(**row));
  }
}

// What earlier attempts of this node and key left: steps, the newest checkpoint, waits.
void Driver::attach_progress(const core::Run& run, const core::Unit& unit, AttemptOrder& order) {
  std::string prefix = step_prefix(run.id, order.task, unit.key);
  Status scanned =
      store_->scan(Family::kv, prefix, prefix, [&](std::string_view key, std::string_view value) {
        order.steps.emplace_back(std::string(key.substr(prefix.size())), std::string(value));
        return true;
      });
  if (!scanned.ok()) fail(scanned.error());
  auto checkpoint = store_->get(Family::kv, checkpoint_key(run.id, order.task, unit.key));
  if (checkpoint.ok() && checkpoint->has_value()) {
    order.has_checkpoint = true;
    order.checkpoint = std::move(**checkpoint);
  }
  for (auto& [name, bytes] : order.steps) attach_value(bytes, order);
  if (order.has_checkpoint) attach_value(order.checkpoint, order);
  if (!unit.extra) return;
  for (const auto& [name, wait] : unit.extra->waits) {
    order.waits.push_back({name, wait.first, wait.second});
  }
}

void Driver::attach_value(const std::string& bytes, AttemptOrder& order) {
  auto value = decode_value(bytes);
  if (!value.ok()) return;
  std::vector<Digest> needed;
  collect_blobs(*value, needed);
  for (const Digest& digest : needed) {
    auto row = store_->get(Family::blobs, digest.view());
    if (row.ok() && row->has_value()) order.blobs.emplace_back(digest, std::move(**row));
  }
}

void Driver::post_failure(const core::AttemptId& id, core::Cause cause, std::string message) {
  core::AttemptFailed event;
  event.id = id;
  event.failure.cause = cause;
  event.failure.message = std::move(message);
  Input input;
  input.event = std::move(event);
  std::vector<Input> inputs;
  inputs.push_back(std::move(input));
  post(std::move(inputs));
}

// ---- reports
// ------------------------------------------------------------------------------------------------

// On the worker's thread: hashing and decoding happen here, not in the turn.
void Driver::on_reports(std::vector<Report> reports) {
  std::vector<Input> inputs;
  inputs.reserve(reports.size());
  for (Report& report : reports) {
    Input input;
    switch (report.kind) {
      case Report::Kind::started:
        continue;
      case Report::Kind::log:
        input.has_event = false;
        input.is_log = true;
        input.log_id = report.id;
        input.stream = report.stream;
        input.at = report.at;
        input.text = std::move(report.text);
        break;
      case Report::Kind::progress:
      case Report::Kind::metric:
        input.has_event = false;
        input.control = nullptr;
        input.done = [this, report = std::move(report)](bool) { observe(report); };
        break;
      case Report::Kind::saved:
        save(std::move(report), input);
        break;
      case Report::Kind::returned:
        input.event = core::AttemptReturned{report.id};
        break;
      case Report::Kind::ready:
        input.event = core::ServiceReady{report.id, report.text};
        break;
      case Report::Kind::finished:
        finish(std::move(report), input);
        break;
    }
    inputs.push_back(std::move(input));
  }
  post_or_turn(std::move(inputs));
}

void Driver::save(Report report, Input& input) {
  Digest digest = sha256(report.value);
  if (report.text.empty()) {
    input.event = core::CheckpointSaved{report.id, digest};
  } else {
    input.event = core::StepSaved{report.id, report.text, digest};
  }
  input.blobs = std::move(report.blobs);
  // The rows are keyed by the unit's name and key, which only the driver's thread may look up.
  input.control = [id = report.id, name = report.text, value = std::move(report.value)](
                      Batch& batch, core::State& state) mutable {
    auto run = state.runs.find(id.run);
    if (run == state.runs.end() || id.unit >= run->second.units.size()) return;
    const core::Unit& unit = run->second.units[id.unit];
    if (unit.attempts != id.attempt || unit.epoch != id.epoch) return;
    std::string task = Resolver::unit_name(run->second, id.unit);
    if (name.empty()) {
      batch.put(Family::kv, checkpoint_key(id.run, task, unit.key), std::move(value));
    } else {
      batch.put(Family::kv, step_prefix(id.run, task, unit.key) + name, std::move(value));
    }
  };
  input.done = [this, id = report.id, name = report.text](bool admitted) {
    if (!admitted && worker_) worker_->ack_saved(id, name, false);
  };
}

void Driver::finish(Report report, Input& input) {
  input.blobs = std::move(report.blobs);
  switch (report.outcome) {
    case Report::Outcome::succeeded: {
      core::AttemptSucceeded event;
      event.id = report.id;
      event.duration_us = report.duration_us;
      if (!report.fragment.empty()) {
        auto decoded = decode_fragment(report.fragment);
        if (!decoded.ok()) {
          core::Failure failure;
          failure.cause = core::Cause::internal;
          failure.message =
              "the list of calls of a dynamic task is damaged: " + decoded.error().message;
          input.event = core::AttemptFailed{report.id, std::move(failure)};
          return;
        }
        event.fragment_digest = sha256(report.fragment);
        event.fragment = std::make_shared<const PlanFragment>(std::move(*decoded));
        input.blobs.emplace_back(event.fragment_digest, std::move(report.fragment));
      }
      event.result = sha256(report.value);
      input.blobs.emplace_back(event.result, std::move(report.value));
      input.event = std::move(event);
      return;
    }
    case Report::Outcome::failed:
      input.event = core::AttemptFailed{report.id, std::move(report.failure)};
      return;
    case Report::Outcome::waiting: {
      core::AttemptWaiting event;
      event.id = report.id;
      event.signal = report.signal;
      event.wait_name = report.wait_name;
      event.deadline = report.wait_timeout_ms < 0 ? 0 : now_ms() + report.wait_timeout_ms;
      input.event = std::move(event);
      return;
    }
    case Report::Outcome::stopped:
      input.event = core::AttemptStopped{report.id};
      return;
  }
}

// ---- watchers
// -------------------------------------------------------------------------------------------------

void Driver::observe(const Report& report) {
  auto found = state_.runs.find(report.id.run);
  RunMeta* run_meta = meta(report.id.run);
  if (found == state_.runs.end() || run_meta == nullptr || !run_meta->listener) return;
  Event event;
  event.type = report.kind == Report::Kind::progress ? "progress" : "metric";
  event.run = report.id.run;
  event.task = Resolver::unit_name(found->second, report.id.unit);
  event.attempt = report.id.attempt;
  event.fraction = report.number;
  event.at_ms = now_ms();
  if (report.kind == Report::Kind::progress) {
    auto metrics = decode_value(report.value);
    if (metrics.ok()) event.data = std::move(*metrics);
  } else {
    event.data = Value::map(
        {{Value(report.text), Value(report.number)}, {Value("step"), Value(report.step)}});
  }
  keep_to_tell(*run_meta, std::move(event));
}

// Listeners are told once a turn: whoever waits for events wakes for many of them.
void Driver::keep_to_tell(RunMeta& run_meta, Event event) {
  if (run_meta.untold.empty()) untold_.push_back(event.run);
  run_meta.untold.push_back(std::move(event));
}

void Driver::tell() {
  for (const RunId& run : untold_) {
    RunMeta* run_meta = meta(run);
    if (run_meta == nullptr) continue;
    std::vector<Event> events = std::exchange(run_meta->untold, {});
    if (run_meta->listener) run_meta->listener->on_events(std::move(events));
  }
  untold_.clear();
}

void Driver::notify_unit(const RunId& run, core::UnitId unit) {
  auto found = state_.runs.find(run);
  RunMeta* run_meta = meta(run);
  if (found == state_.runs.end() || run_meta == nullptr || !run_meta->listener) return;
  const core::Unit& u = found->second.units[unit];
  if (u.status == core::UnitStatus::pending || u.status == core::UnitStatus::ready) return;
  Event event;
  event.type = "task";
  event.run = run;
  event.task = Resolver::unit_name(found->second, unit);
  event.attempt = u.attempts;
  event.status = core::status_name(u.status);
  event.cached = u.cached;
  event.at_ms = now_ms();
  if (u.extra) {
    event.text = u.extra->failure.message;
    if (u.status == core::UnitStatus::running && !u.extra->url.empty()) {
      event.type = "serving";
      event.text = u.extra->url;
    }
    bool is_backoff = u.phase == core::Phase::backoff;
    if (is_backoff) event.text = "a new attempt, after: " + u.extra->failure.message;
    if (u.status == core::UnitStatus::waiting && !is_backoff) event.text = u.extra->waiting_for;
  }
  keep_to_tell(*run_meta, std::move(event));
}

void Driver::notify_run(const RunId& run) {
  auto found = state_.runs.find(run);
  RunMeta* run_meta = meta(run);
  if (found == state_.runs.end() || run_meta == nullptr) return;
  core::RunStatus status = found->second.status;
  if (status == core::RunStatus::serving && run_meta->serve_for_ms >= 0) {
    serve_ends_.emplace(now_ms() + run_meta->serve_for_ms, run);
    run_meta->serve_for_ms = -1;
  }
  if (!run_meta->listener) return;
  Event event;
  event.type = "run";
  event.run = run;
  event.status = core::status_name(status);
  event.at_ms = now_ms();
  keep_to_tell(*run_meta, std::move(event));
  if (status == core::RunStatus::interrupted) {
    tell();
    run_meta->listener->on_end();
    run_meta->listener.reset();
  }
}

// ---- rows
// -----------------------------------------------------------------------------------------------------

void Driver::write_row(const RunId& run) {
  auto found = state_.runs.find(run);
  if (found == state_.runs.end()) return;
  RunRow row;
  if (RunMeta* run_meta = meta(run)) {
    row = run_meta->row;
  } else {
    auto old = store_->get(Family::runs, run_key(run));
    if (!old.ok() || !old->has_value()) return;
    auto decoded = decode_run_row(**old);
    if (!decoded.ok()) return;
    row = std::move(*decoded);
  }
  update_row(found->second, row);
  if (RunMeta* run_meta = meta(run)) run_meta->row = row;
  batch_.put(Family::runs, run_key(run), encode_run_row(row));
}

void Driver::fold(const RunId& run, core::Time) {
  auto found = state_.runs.find(run);
  if (found == state_.runs.end()) return;
  write_row(run);
  auto frozen = freeze(found->second, blobs_, batch_);
  if (!frozen.ok()) return fail(frozen.error());
  batch_.put(Family::kv, folded_key(run), std::move(*frozen));
  log_counts_.erase(log_counts_.lower_bound({run, 0}), log_counts_.upper_bound({run, UINT32_MAX}));
}

// ---- timers
// ---------------------------------------------------------------------------------------------------

std::vector<Driver::Input> Driver::due_timers(core::Time now) {
  std::vector<Input> due;
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const core::SetTimer& timer = timers_.begin()->second;
    Input input;
    input.event = core::TimerFired{timer.run, timer.unit, timer.serial};
    due.push_back(std::move(input));
    timers_.erase(timers_.begin());
  }
  while (!serve_ends_.empty() && serve_ends_.begin()->first <= now) {
    Input input;
    input.event = core::ServeEnded{serve_ends_.begin()->second};
    due.push_back(std::move(input));
    serve_ends_.erase(serve_ends_.begin());
  }
  return due;
}

}  // namespace flow
