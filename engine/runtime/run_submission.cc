#include "engine/runtime/run_submission.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "engine/blobs/folder.hpp"
#include "engine/core/rollover.hpp"
#include "engine/core/scaling.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/runtime/event_log.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/submission/prepare.hpp"
#include "engine/submission/run_inputs.hpp"

namespace flow {

namespace {

std::string already_active(const core::Run& run) {
  return fmt::format("the run {} is {} already: it continues in the process that writes this state",
                     run.id, core::status_name(run.status));
}

std::string address_of(const ServiceSpec& service) {
  return service.address.empty() ? "127.0.0.1" : service.address;
}

/// "127.0.0.1:8080", "a free port of 127.0.0.1"
std::string listen_text(const ServiceSpec& service) {
  std::string address = address_of(service);
  if (service.port == 0) return "a free port of " + address;
  bool is_v6 = address.find(':') != std::string::npos;
  return fmt::format(fmt::runtime(is_v6 ? "[{}]:{}" : "{}:{}"), address, service.port);
}

/// "without `grpc`", "with `grpc` at port 8081"
std::string grpc_text(const ServiceSpec& service) {
  if (service.grpc_port < 0) return "without `grpc`";
  if (service.grpc_port == 0) return "with `grpc` at a free port";
  return fmt::format("with `grpc` at port {}", service.grpc_port);
}

/// With the port that a ready service has taken in place of a free one.
ServiceSpec service_of(const core::Run& run, core::UnitId unit) {
  ServiceSpec service = core::def_of(run, unit)->service;
  const core::Unit& u = run.units[unit];
  if (service.port != 0 || !u.detail) return service;
  std::string_view url = u.detail->url;
  std::string_view port = url.substr(std::min(url.rfind(':'), url.size() - 1) + 1);
  std::from_chars(port.data(), port.data() + port.size(), service.port);
  return service;
}

/// What keeps the services of a new run from taking over the listeners of the run that serves its
/// name; "" for nothing.
std::string takeover_problem(const core::State& state, const core::RunSubmitted& submitted) {
  if (submitted.name.empty()) return "";
  auto problem_of = [&](const core::RunId& id, const TaskNode& node, const TaskDef& old_def,
                        const ServiceSpec& before, const TaskDef& def) -> std::string {
    const ServiceSpec& now = def.service;
    std::string listens = listen_text(now), listened = listen_text(before);
    bool has_other_address = address_of(now) != address_of(before);
    if (has_other_address || (now.port != 0 && listens != listened))
      return fmt::format(
          "`{}` of `{}` is served at {} by the run {}; the new version listens at {}. A new "
          "version takes over the listener: give it the same `listen` or `port = 0`, or another "
          "--name",
          node.name, submitted.name, listened, id, listens);
    bool takes_grpc = now.grpc_port == 0 && before.grpc_port >= 0;
    if (now.grpc_port != before.grpc_port && !takes_grpc)
      return fmt::format(
          "`{}` of `{}` is served {} by the run {}; the new version listens {}. A new version "
          "takes "
          "over the listener: give it the same `grpc`, or another --name",
          node.name, submitted.name, grpc_text(before), id, grpc_text(now));
    if (old_def.shell.command.empty() != def.shell.command.empty()) {
      auto kind = [](const TaskDef& of) {
        return of.shell.command.empty() ? "a function" : "the server of a `command`";
      };
      return fmt::format(
          "`{}` of `{}` is served with {} by the run {}, and the new version answers with {}. A "
          "new "
          "version takes over the listener: give the service another name, or the run another "
          "--name",
          node.name, submitted.name, kind(old_def), id, kind(def));
    }
    if (before.tls == now.tls) return "";
    return fmt::format(
        "`{}` of `{}` is served {} by the run {}, and the new version has {}. A new version takes "
        "over the listener: give it the same `tls`, or another --name",
        node.name, submitted.name, before.tls.is_empty() ? "without `tls`" : "with `tls`", id,
        now.tls.is_empty()      ? "none"
        : before.tls.is_empty() ? "`tls`"
                                : "other files");
  };
  for (const auto& [id, run] : state.runs) {
    bool serves = run.name == submitted.name && !core::is_final(run.status) && !run.stopping &&
                  !run.ending && !run.cancelling && id != submitted.run;
    if (!serves) continue;
    for (core::UnitId service : run.services) {
      const TaskNode& before = run.node(run.units[service].node);
      for (const TaskNode& node : submitted.plan->nodes) {
        if (node.kind == NodeKind::when || node.name != before.name) continue;
        const TaskDef& def = submitted.plan->defs[node.def];
        if (def.kind != TaskKind::service) continue;
        std::string problem =
            problem_of(id, node, *core::def_of(run, service), service_of(run, service), def);
        if (!problem.empty()) return problem;
      }
    }
  }
  return "";
}

/// An archived run names workers by their old numbers. They become the numbers of the workers of
/// the same names; workers that are not there any more are forgotten.
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

/// A replica of a run that is replaced; its process may outlive the engine.
struct LeftReplica {
  core::UnitId unit = 0;
  std::string name, node;
  bool is_of_plan = false;  // not of a dynamic task's call
};

std::vector<LeftReplica> left_replicas(const core::Run& run) {
  std::vector<LeftReplica> left;
  for (core::UnitId service : run.services) {
    uint32_t node = run.units[service].node;
    left.push_back({service, core::unit_name(run, service), run.node(node).name,
                    node < run.plan->nodes.size()});
  }
  return left;
}

/// Whether the node is a map whose instances are not known yet.
bool is_unexpanded_map(const core::Run& run, const std::string& name) {
  const std::vector<TaskNode>& nodes = run.plan->nodes;
  auto node = std::ranges::find(nodes, name, &TaskNode::name);
  return node != nodes.end() && node->kind == NodeKind::map &&
         !run.units[static_cast<core::UnitId>(node - nodes.begin())].expanded;
}

/// By unit of the replaced run: the unit that its replica is of now. Replicas for which the new
/// plan has no use are left out: services that it lacks, and what the load had added.
std::map<core::UnitId, core::UnitId> moved_replicas(const std::vector<LeftReplica>& left,
                                                    const core::Run& now) {
  std::map<std::string, core::UnitId> used;
  for (core::UnitId service : now.services)
    if (!core::is_spare(now, service)) used.emplace(core::unit_name(now, service), service);
  std::map<core::UnitId, core::UnitId> moved;
  for (const LeftReplica& replica : left) {
    if (auto found = used.find(replica.name); found != used.end())
      moved.emplace(replica.unit, found->second);
    else if (!replica.is_of_plan || is_unexpanded_map(now, replica.node))
      moved.emplace(replica.unit, replica.unit);
  }
  return moved;
}

/// The unit of this name, or an error that proposes a similar name.
Result<core::UnitId> unit_named(const core::Run& run, const std::string& task) {
  std::vector<std::string> names;
  core::UnitId found = kNoNode;
  for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
    names.push_back(core::shown_name(run, unit));
    if (names.back() == task || core::unit_name(run, unit) == task) found = unit;
  }
  if (found != kNoNode) return found;
  std::string near = nearest_name(task, names);
  return user_error(fmt::format("the run {} has no task `{}`{}", run.id, task,
                                near.empty() ? "" : fmt::format(" (did you mean `{}`?)", near)));
}

}  // namespace

Status RunSubmission::add(Prepared prepared, int32_t jobs, bool replaces) {
  RunContext& context = prepared.context;
  const core::RunId id = context.record.id;
  std::map<std::string, Digest> signals;  // of the replaced run: received signals are kept
  std::vector<core::Action> actions;
  std::optional<core::BudgetTerms> budget = context.budget;
  const bool is_budget_asked = context.is_budget_asked;  // the context is moved from below
  auto keep_budget = [&](const core::Run& old) {
    if (budget && !old.budget)
      budget->before_nano = static_cast<int64_t>(core::cost_so_far(old, budget->prices));
    if (!old.budget) return;
    if (!budget || !is_budget_asked) budget = old.budget->terms;
    budget->before_nano = static_cast<int64_t>(old.budget->spent_nano);
  };
  bool is_archived = false;
  auto take_archived_signals = [&]() -> Status {
    auto archived = stored_runs_.find_archived(id);
    FLOW_TRY(archived);
    is_archived = archived->has_value();
    if (!is_archived) return {};
    signals = (*archived)->runs.at(id).signals;
    actions = (*archived)->runs.at(id).actions;
    keep_budget((*archived)->runs.at(id));
    return {};
  };
  if (replaces) FLOW_TRY(take_archived_signals());
  core::RunSubmitted event;
  event.run = id;
  event.name = context.record.name;
  event.plan_digest = context.record.plan_digest;
  event.plan = std::move(prepared.plan);
  hide_secrets(*event.plan, *context.environment);
  event.jobs = jobs;
  event.fresh = context.record.fresh;
  event.fail_fast = context.record.fail_fast;
  event.user = context.user;
  std::string problem;
  bool is_admitted = false;
  StoreCallback submit{[&, this](Batch& batch, core::State& state) {
    problem = takeover_problem(state, event);
    if (!problem.empty()) return;
    std::vector<LeftReplica> replicas;
    auto old = state.runs.find(id);
    if (old != state.runs.end()) {
      replicas = left_replicas(old->second);
      if (context.is_unattended) event.user = old->second.user;
      auto old_signals = old->second.signals;
      auto old_actions = old->second.actions;
      keep_budget(old->second);
      bool is_dropped =
          replaces && recorder_.record_if_admitted(core::RunDeleted{id}, recorder_.turn_time());
      if (!is_dropped) {
        problem = already_active(old->second);
        return;
      }
      signals = std::move(old_signals);
      actions = std::move(old_actions);
    } else if (replaces && !is_archived) {  // the run has ended since
      (void)take_archived_signals();
    }
    if (context.action != core::ActionKind::none && !context.by.empty())
      actions.push_back({context.action, recorder_.turn_time(), context.by});
    if (actions.size() > core::kActionsMax) actions.erase(actions.begin());
    event.actions = std::move(actions);
    const Digest plan = context.record.plan_digest, bundle = context.record.bundle_digest;
    std::string bundle_bytes = *context.bundle, request = context.request;
    core::Event submitted = std::move(event);
    is_admitted = core::admit(state, submitted);
    if (!is_admitted) return;
    if (replaces) stored_runs_.erase(id, batch);
    if (replaces || has_kept_options(context)) put_kept_options(context, batch);
    if (replaces || !context.notify.empty()) put_notify_settings(context, batch);
    active_runs_.put(id, std::move(context));
    blobs_.stage(plan, std::move(prepared.plan_bytes));
    blobs_.stage(bundle, std::move(bundle_bytes));
    if (!request.empty()) batch.put(Family::kv, request_key(request), id);
    if (!prepared.inputs.empty()) batch.put(Family::kv, inputs_key(id), std::move(prepared.inputs));
    recorder_.record(std::move(submitted), recorder_.turn_time());
    if (!replicas.empty()) workers_.move_replicas(id, moved_replicas(replicas, state.runs.at(id)));
    if (budget) recorder_.record(core::BudgetSet{id, std::move(*budget)}, recorder_.turn_time());
    for (const auto& [name, value] : signals)
      recorder_.record_if_admitted(core::SignalReceived{id, name, value}, recorder_.turn_time());
    // Attempts are numbered from 1 again, so folders of old ones must go before new ones may begin.
    if (replaces) (void)remove_tree(state_dir_ + "/scratch/" + id);
  }};
  inbox_.post_and_wait({std::move(submit)});
  if (auto error = stop_.get()) return *error;
  if (!problem.empty()) return user_error(problem);
  if (!is_admitted) return internal_error("the engine refused the run");
  return {};
}

Result<bool> RunSubmission::await_interrupted(const core::RunId& id) {
  bool has_waited = false;
  auto latch = std::make_shared<Latch>();
  inbox_.post({StoreCallback{[&, this, latch](Batch&, core::State&) {
                 has_waited = active_runs_.is_being_interrupted(id);
                 if (has_waited) active_runs_.await_interruption(id, latch);
               }},
               [&, latch](bool is_done) {
                 if (!has_waited || !is_done) latch->open(is_done);
               }});
  latch->wait();
  if (auto error = stop_.get()) return *error;
  return has_waited;
}

Status RunSubmission::resume(RunContext context, const std::string& task, bool is_retry) {
  const core::RunId id = context.record.id;
  const std::string request = context.request;
  const std::string by = context.is_unattended ? "" : context.by;
  const std::shared_ptr<RunListener> listener = context.listener;
  const bool was_over = is_over(context.record.status);  // when the caller read the record
  auto has_waited = await_interrupted(id);
  FLOW_TRY(has_waited);
  auto archived = stored_runs_.find_archived(id);
  FLOW_TRY(archived);
  if (task.empty()) missing_results_.drop_damaged(id, *archived);
  auto inputs = inputs_of(store_, id);
  FLOW_TRY(inputs);
  FLOW_TRY(restore_inputs(*inputs, store_, stored_));
  auto loaded = load(std::move(context), task, is_retry, std::move(*archived), *has_waited);
  FLOW_TRY(loaded);
  MissingResults::Outputs& missing = loaded->missing;
  if (!missing.calls.empty()) {
    FLOW_TRY(missing_results_.rerun_dynamic_tasks(id, missing));
    inbox_.post_and_wait({StoreCallback{[&, this](Batch&, core::State&) {
      if (RunContext* found = active_runs_.find(id)) found->listener = listener;
    }}});
  }
  bool is_admitted = loaded->is_admitted;
  if (!is_admitted && loaded->is_loaded) {
    PostedEvent posted{retry_of(id, *loaded, by, is_retry)};
    if (!request.empty()) posted.metadata.emplace_back(request_key(request), id);
    is_admitted = inbox_.post_and_wait({std::move(posted)});
    if (auto error = stop_.get()) return *error;
  }
  if (is_admitted) return {};
  if (task.empty() && (!loaded->was_over || !was_over)) {  // the run has ended since
    // gc maps the client's mark to the run by this row.
    inbox_.post_and_wait({StoreCallback{[&](Batch& batch, core::State&) {
      if (!request.empty()) batch.put(Family::kv, request_key(request), id);
    }}});
    if (auto error = stop_.get()) return *error;
    if (listener) listener->on_end();
    return {};
  }
  return user_error(
      task.empty()
          ? fmt::format("the run {} has nothing to resume", id)
          : fmt::format("`{}` is still running or waiting: it can run again after it has ended",
                        task));
}

core::RetryRequested RunSubmission::retry_of(const core::RunId& id, const Loaded& loaded,
                                             const std::string& by, bool is_retry) {
  core::RetryRequested event;
  event.run = id;
  event.has_unit = loaded.unit != kNoNode;
  event.unit = event.has_unit ? loaded.unit : 0;
  event.lost = loaded.missing.results;
  event.by = by;
  event.is_retry = is_retry;
  return event;
}

// The run continues with the options and the listener of this request. The listener gets the
// present state of the run and of its services.
void RunSubmission::attend(RunContext context, const core::Run& run, Batch& batch) {
  const core::RunId id = run.id;
  if (context.budget) {
    core::BudgetTerms terms = *context.budget;
    if (run.budget) terms.before_nano = run.budget->terms.before_nano;
    recorder_.record(core::BudgetSet{id, std::move(terms)}, recorder_.turn_time());
  }
  if (!context.request.empty()) batch.put(Family::kv, request_key(context.request), id);
  if (context.environment) hide_secrets(*run.plan, *context.environment);
  put_kept_options(context, batch);
  put_notify_settings(context, batch);
  active_runs_.put(id, std::move(context));
  std::set<core::UnitId> up;  // of replicas their set
  for (core::UnitId service : run.services)
    if (core::is_up(run.units[service])) up.insert(run.unit_of(run.units[service].node));
  std::vector<core::Command> news;
  for (core::UnitId service : up) news.push_back(core::UnitChanged{id, service});
  news.push_back(core::RunChanged{id});
  recorder_.add_commands(std::move(news));
}

// An archived run returns to the state first. The snapshot of this turn makes that durable,
// together with the request: a run whose resume is rejected stays in its archive.
Result<RunSubmission::Loaded> RunSubmission::load(RunContext context, const std::string& task,
                                                  bool is_retry,
                                                  std::optional<core::State> archived,
                                                  bool has_waited) {
  const core::RunId id = context.record.id;
  Result<Loaded> result = Loaded();
  auto load_in_turn = [&, this](Batch& batch, core::State& state) -> Status {
    if (!archived && !state.runs.contains(id)) {  // the run has ended since
      auto again = stored_runs_.find_archived(id);
      if (again.ok()) archived = std::move(*again);
    }
    auto found = state.runs.find(id);
    if (found == state.runs.end() && !archived)
      return user_error(fmt::format("the run {} is not in this state any more", id));
    result->is_from_archive = found == state.runs.end();
    const core::Run& run = result->is_from_archive ? archived->runs.at(id) : found->second;
    result->was_over = core::is_final(run.status) && !has_waited;
    bool at_rest = core::is_final(run.status) || run.status == core::RunStatus::interrupted;
    // Workers may still run attempts of an engine that died. The run waits until it is resumed.
    bool is_abandoned = run.stopping && !active_runs_.contains(id);
    const RunContext* active = active_runs_.find(id);
    bool is_unattended = !at_rest && active != nullptr && active->is_unattended;
    bool is_continuing = !run.stopping && !run.cancelling && !run.ending;
    if (is_unattended && is_continuing && task.empty() && !is_retry) {
      result->is_admitted = true;
      attend(std::move(context), run, batch);
      return {};
    }
    if (!at_rest && !is_abandoned) return user_error(already_active(run));
    if (!task.empty()) {
      auto unit = unit_named(run, task);
      FLOW_TRY(unit);
      if (core::is_service(run, *unit) || core::is_replica_set(run, *unit))
        return user_error(
            fmt::format("`{}` is a service, which does not run again by itself. `flow resume {}` "
                        "starts it again if the run has not ended; else start a new run",
                        task, id));
      if (core::is_gate(run, *unit))
        return user_error(
            fmt::format("`{}` was called for a step of a canary, and does not run again by itself. "
                        "`flow retry {}` begins the canary again",
                        task, id));
      result->unit = *unit;
    }
    if (result->is_from_archive) {
      rename_workers(archived->runs.at(id), archived->workers, state.workers);
      state.runs.emplace(id, std::move(archived->runs.at(id)));
      core::rebuild_derived(state);
    }
    if (task.empty() && at_rest) result->missing = missing_results_.find(state.runs.at(id));
    // Dynamic tasks that run again come first: the request follows when they are done.
    bool is_whole = result->missing.calls.empty();
    core::Event event = retry_of(id, *result, context.is_unattended ? "" : context.by, is_retry);
    result->is_admitted = is_whole && core::admit(state, event);
    if (is_whole && !result->is_admitted) {
      if (result->is_from_archive) {
        state.runs.erase(id);
        core::rebuild_derived(state);
      }
      return {};
    }
    result->is_loaded = true;
    if (result->is_from_archive) {
      batch.erase(Family::kv, archive_key(id));
      group_commit_.request_snapshot();
    }
    // The listener is notified of the run only when it continues.
    if (!is_whole) context.listener = nullptr;
    std::string request = context.request;
    if (context.budget) {
      const auto& before = state.runs.at(id).budget;
      core::BudgetTerms terms = *context.budget;
      if (before) terms.before_nano = before->terms.before_nano;
      recorder_.record(core::BudgetSet{id, std::move(terms)}, recorder_.turn_time());
    }
    if (context.environment) hide_secrets(*state.runs.at(id).plan, *context.environment);
    put_kept_options(context, batch);
    put_notify_settings(context, batch);
    active_runs_.put(id, std::move(context));
    if (!result->is_admitted) return {};
    if (!request.empty()) batch.put(Family::kv, request_key(request), id);
    recorder_.record(std::move(event), recorder_.turn_time());
    return {};
  };
  Status loaded;
  inbox_.post_and_wait({StoreCallback{
      [&](Batch& batch, core::State& state) { loaded = load_in_turn(batch, state); }}});
  if (auto error = stop_.get()) return *error;
  FLOW_TRY(loaded);
  return result;
}

}  // namespace flow
