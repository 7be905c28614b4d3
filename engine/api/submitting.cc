// Starts, resumes and retries runs.
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "engine/api/local_engine.hpp"
#include "engine/base/clock.hpp"
#include "engine/query/reader_impl.hpp"
#include "engine/runs/detached_runs.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/runtime/submission_context.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/submission/notify_settings.hpp"
#include "engine/submission/run_budget.hpp"
#include "engine/submission/run_inputs.hpp"
#include "engine/submission/task_configuration.hpp"

namespace flow {

Submission LocalEngine::local_submission(const RunOptions& options) const {
  return value_or_throw(make_submission(options_, options));
}

std::shared_ptr<detail::RunHandle> LocalEngine::watch(const RunId& id) {
  auto state = std::make_shared<detail::RunHandle>();
  state->id = id;
  EngineLoop* engine_loop = engine_loop_.get();
  state->info = [this, id] { return describe_run(id, true); };
  state->summary = [this, id] { return describe_run(id, false); };
  state->counts = [this, id] { return counts(id); };
  state->counts_by_task = [this, id] { return counts_by_task(id); };
  auto who = [own = requester_of(options_)](const std::string& by) {
    return by.empty() ? own : by;
  };
  state->interrupt = [engine_loop, id, who](bool kill, const std::string& by) {
    engine_loop->interrupt(id, kill, who(by));
  };
  state->cancel = [engine_loop, id, who](const std::string& by) {
    (void)engine_loop->post_and_wait(core::CancelRequested{id, who(by)});
  };
  state->end_serving = [engine_loop, id, who](const std::string& by) {
    (void)engine_loop->post_and_wait(core::ServeEnded{id, who(by)});
  };
  state->outlive_client = [engine_loop, id] { return engine_loop->outlive_client(id); };
  std::lock_guard lock(watched_mutex_);
  std::erase_if(watched_, [](const auto& watched) { return watched.expired(); });
  watched_.push_back(state);
  std::string warning = std::exchange(unsaid_warning_, "");
  if (!warning.empty()) state->report("warning", warning);
  return state;
}

std::shared_ptr<detail::RunHandle> LocalEngine::run(const std::string& script, const Value& params,
                                                    const RunOptions& options) {
  Submission submission = local_submission(options);
  submission.script = script;
  submission.params = params;
  return run_for(submission);
}

namespace {

/// Reports what the script printed while it was built, and the warnings of its plan.
void report_build(detail::RunHandle& state, const Plan& plan) {
  for (const std::string& line : plan.printed) state.report("print", line);
  for (const std::string& warning : plan.warnings) state.report("warning", warning);
}

/// Reports each task of a plan preview, before a run continues with new code.
void report_plan_preview(detail::RunHandle& state, const PlanInfo& preview) {
  for (const PlanNode& node : preview.nodes) {
    Event event;
    event.type = "plan";
    event.run = state.id;
    event.task = node.name;
    event.tag = node.tag;
    event.status = node.verdict;
    event.text = node.reason;
    event.at_ms = now_ms();
    state.on_event(std::move(event));
  }
}

}  // namespace

// A writer may die between the commit and its reply. A client that repeats its request means the
// run of the first request: it continues or has ended.
std::shared_ptr<detail::RunHandle> LocalEngine::find_request(const Submission& submission) {
  const std::string& request = submission.options.request;
  if (request.empty()) return nullptr;
  auto run = value_or_throw(engine_loop_->parts().store.get(Family::kv, request_key(request)));
  if (!run) return nullptr;
  auto state = watch(*run);  // gc keeps the run from here on
  auto record = select_record(engine_loop_->parts().store, *run);
  if (!record.ok()) return nullptr;  // removed by gc
  Submission again = submission;
  again.options.request.clear();
  again.options.on_end.clear();  // as kept: it was committed with the request
  if (again.options.detached) again.options.serve_for_ms = RunOptions().serve_for_ms;  // as kept
  if (!is_over(record->status)) return resume_for(record->id, "", Resumption::resume, again);
  state->on_end();
  return state;
}

std::shared_ptr<detail::RunHandle> LocalEngine::run_for(const Submission& submission) {
  if (auto requested_before = find_request(submission)) return requested_before;
  ok_or_throw(check_for_work_elsewhere());
  const Status adopted = adopt_serving_version(submission.options.name, "");
  auto held = engine_loop_->parts().pins.hold();
  Prepared prepared = value_or_throw(prepare(*engine_loop_, submission));
  ok_or_throw(check_canary(adopted, *prepared.plan));
  RunId id = prepared.context.record.id;
  auto nested =
      value_or_throw(nested_.check(*engine_loop_, id, prepared.plan, *submission.environment));
  auto state = watch(id);
  prepared.context.listener = state;
  prepared.context.is_of_head = is_head();
  report_build(*state, *prepared.plan);
  ok_or_throw(engine_loop_->submit(std::move(prepared), submission.options.jobs));
  return state;
}

std::shared_ptr<detail::RunHandle> LocalEngine::resume(const std::string& selector,
                                                       const RunOptions& options, bool new_code) {
  return resume_first(selector, "", new_code ? Resumption::new_code : Resumption::resume,
                      local_submission(options));
}

std::shared_ptr<detail::RunHandle> LocalEngine::retry(const std::string& selector,
                                                      const std::string& task,
                                                      const RunOptions& options) {
  return resume_first(selector, task, Resumption::retry, local_submission(options));
}

std::shared_ptr<detail::RunHandle> LocalEngine::resume_for(const std::string& selector,
                                                           const std::string& task, Resumption how,
                                                           const Submission& from) {
  ok_or_throw(check_on_end(from.options.on_end));
  if (auto requested_before = find_request(from)) return requested_before;
  const RunRecord named = value_or_throw(select_record(engine_loop_->parts().store, selector));
  const Status adopted = adopt_serving_version(named.name, named.id);
  auto held = engine_loop_->parts().pins.hold();
  RunRecord record = value_or_throw(select_record(engine_loop_->parts().store, named.id));
  auto state = watch(record.id);
  if (record.status == "cancelled") {
    bool is_here = record.script.starts_with("/");
    throw Failed(
        user_error(fmt::format("the run {} was cancelled and cannot be resumed: {} starts a new "
                               "run, which takes finished results from the cache",
                               record.id,
                               is_here ? fmt::format("`flow run {}`", record.script)
                                       : "`flow run`, where it was started,")));
  }
  if (how == Resumption::new_code)
    resume_with_new_code(record, from, adopted, state);
  else
    resume_with_own_code(record, task, how, from, adopted, state);
  return state;
}

void LocalEngine::resume_with_new_code(const RunRecord& record, const Submission& from,
                                       const Status& adopted,
                                       const std::shared_ptr<detail::RunHandle>& state) {
  ok_or_throw(check_for_work_elsewhere());
  Submission again = from;
  again.script = record.script;
  again.working_directory = record.directory;
  Inputs inputs = value_or_throw(inputs_of(engine_loop_->parts().store, record.id));
  again.params = current_params(inputs, value_or_throw(decode_value(record.params)));
  again.resumed_inputs = std::make_shared<const Inputs>(std::move(inputs));
  again.options.fresh = record.fresh;
  again.options.fail_fast = record.fail_fast;
  if (again.options.on_end.empty()) {
    auto row = value_or_throw(engine_loop_->parts().store.get(Family::kv, notify_key(record.id)));
    again.options.on_end = decode_notify_settings(row.value_or("")).on_end;
  }
  if (!record.script.starts_with("/") && !again.built)
    throw Failed(user_error(fmt::format(
        "the run {} was started on another machine, from `{}`: resume it with new code there",
        record.id, record.script)));
  Prepared prepared = value_or_throw(prepare(*engine_loop_, again));
  ok_or_throw(check_canary(adopted, *prepared.plan));
  prepared.context.record.id = record.id;
  prepared.context.record.name = record.name;
  prepared.context.record.submitted = record.submitted;
  prepared.context.action = core::ActionKind::resume;
  auto nested =
      value_or_throw(nested_.check(*engine_loop_, record.id, prepared.plan, *from.environment));
  prepared.context.listener = state;
  prepared.context.is_of_head = is_head();
  report_build(*state, *prepared.plan);
  report_plan_preview(*state, preview(prepared, record.fresh, &record));
  end_removed_services(record.id, *prepared.plan);
  ok_or_throw(engine_loop_->replace(std::move(prepared), from.options.jobs));
}

void LocalEngine::resume_with_own_code(const RunRecord& record, const std::string& task,
                                       Resumption how, const Submission& from,
                                       const Status& adopted,
                                       const std::shared_ptr<detail::RunHandle>& state) {
  bool retries_ignored = how == Resumption::retry && record.counts.ignored > 0;
  if (record.status == "succeeded" && task.empty() && !retries_ignored) {
    // Nothing else of this request is committed yet. gc needs this row to map the client's mark to
    // the run.
    const std::string& request = from.options.request;
    if (!request.empty()) engine_loop_->put_metadata(request_key(request), record.id);
    state->on_end();
    return;
  }
  ok_or_throw(check_for_work_elsewhere());
  std::string bundle_bytes = value_or_throw(engine_loop_->parts().blobs.get(record.bundle_digest));
  std::string plan_bytes = value_or_throw(engine_loop_->parts().blobs.get(record.plan_digest));
  Plan plan = value_or_throw(decode_plan(plan_bytes));
  ok_or_throw(check_canary(adopted, plan));
  Capacity capacity = value_or_throw(capacity_for(plan, *engine_loop_));
  std::vector<std::string> warnings;
  std::vector<Error> errors = check_requirements(plan, *from.environment, capacity, warnings);
  if (!errors.empty()) throw Failed(errors.front());
  std::optional<core::BudgetTerms> budget;
  if (!from.options.budget.empty()) {
    std::string profile;
    Inputs inputs = value_or_throw(inputs_of(engine_loop_->parts().store, record.id));
    budget = value_or_throw(
        budget_terms(from.options.budget, values_of_kept(inputs.config, profile), plan));
  }
  auto nested = value_or_throw(nested_.check(
      *engine_loop_, record.id, std::make_shared<const Plan>(std::move(plan)), *from.environment));
  RunContext context;
  context.record = record;
  context.request = from.options.request;
  context.budget = std::move(budget);
  context.bundle = std::make_shared<const std::string>(std::move(bundle_bytes));
  context.environment = from.environment;
  context.grace_ms = from.options.grace_ms;
  context.publishes_logs = from.options.logs;
  context.serve_for_ms = from.options.serve_for_ms;
  context.front_lease_ms = from.options.front_lease_ms;
  context.is_detached = from.options.detached;
  context.is_of_head = is_head();
  context.is_unattended = from.is_unattended;
  context.by = from.by;
  context.notify =
      value_or_throw(kept_notify_row(engine_loop_->parts().store, record, from.options.on_end));
  if (!context.is_unattended) context.listener = state;
  auto before = find_detached_run(engine_loop_->parts().store, record.id);
  if (before.ok() && *before) keep_options(context, **before);
  Bundle bundle = value_or_throw(decode_bundle(*context.bundle));
  std::string changed = changed_sources(bundle);
  if (!changed.empty()) {
    state->report(
        "warning",
        fmt::format("{} differs from what the run was started with; the run continues with its "
                    "own code. `flow resume {} --code new` uses the new code.",
                    changed, record.id));
  }
  report_changed_inputs(*state, record);
  ok_or_throw(engine_loop_->resume(std::move(context), task, how == Resumption::retry));
}

}  // namespace flow
