// Serves the results of stored runs, and returns to an earlier version.
#include <fmt/format.h>

#include "engine/api/local_engine.hpp"
#include "engine/query/reader_impl.hpp"
#include "engine/runs/served_versions.hpp"
#include "engine/runtime/submission_context.hpp"
#include "engine/submission/notify_settings.hpp"
#include "engine/submission/stored_submission.hpp"

namespace flow {

std::shared_ptr<detail::RunHandle> LocalEngine::serve(const std::string& selector,
                                                      const RunOptions& options) {
  return serve_for(selector, false, local_submission(options));
}

std::shared_ptr<detail::RunHandle> LocalEngine::rollback(const std::string& name,
                                                         const RunOptions& options) {
  return serve_for(name, true, local_submission(options));
}

namespace {

/// The version that served `name` before the present one.
Result<RunRecord> version_to_restore(const Store& store, const Blobs& blobs,
                                     const std::string& name) {
  auto serving = serving_version(store, name);
  FLOW_TRY(serving);
  if (name.empty() || !*serving)
    return user_error(fmt::format(
        "no run with the name `{}` serves: `flow services` lists the names that are served", name));
  auto before = version_before(store, blobs, **serving);
  FLOW_TRY(before);
  if (!*before)
    return user_error(fmt::format(
        "there is no version of `{}` before the run {}: no earlier run of this name in the state "
        "has the same services, has served and has succeeded",
        name, (*serving)->id));
  return std::move(**before);
}

}  // namespace

std::shared_ptr<detail::RunHandle> LocalEngine::serve_for(const std::string& selector,
                                                          bool rolls_back, const Submission& from) {
  ok_or_throw(check_on_end(from.options.on_end));
  if (rolls_back)
    if (auto rejected = end_canary(selector, from)) return version_kept(selector, *rejected);
  if (auto requested_before = find_request(from)) return requested_before;
  ok_or_throw(check_for_work_elsewhere());
  const Store& store = engine_loop_->parts().store;
  const Blobs& blobs = engine_loop_->parts().blobs;
  RunRecord record = value_or_throw(rolls_back ? version_to_restore(store, blobs, selector)
                                               : select_served(store, selector));
  Submission submission = from;
  std::string& name = submission.options.name;
  if (rolls_back || name.empty()) name = record.name;
  const Status adopted = adopt_serving_version(name, "");
  auto held = engine_loop_->parts().pins.hold();
  Prepared prepared = value_or_throw(prepare_stored(
      store, blobs, record, submission, rolls_back ? Takeover::at_once : Takeover::by_canary));
  ok_or_throw(check_canary(adopted, *prepared.plan));
  prepared.context.record.id = engine_loop_->parts().stored_runs.new_id();
  prepared.context.record.submitted = engine_loop_->parts().clock.now();
  Capacity capacity = value_or_throw(capacity_for(*prepared.plan, *engine_loop_));
  std::vector<std::string> warnings;
  std::vector<Error> errors =
      check_requirements(*prepared.plan, *from.environment, capacity, warnings);
  if (!errors.empty()) throw Failed(errors.front());
  ok_or_throw(check_only_services_run(preview(prepared, false, nullptr), record));
  const RunId id = prepared.context.record.id;
  prepared.context.action = rolls_back ? core::ActionKind::rollback : core::ActionKind::serve;
  auto nested = value_or_throw(nested_.check(*engine_loop_, id, prepared.plan, *from.environment));
  auto state = watch(id);
  prepared.context.listener = state;
  prepared.context.is_of_head = is_head();
  prepared.context.notify = value_or_throw(kept_notify_row(store, record, from.options.on_end));
  for (const std::string& warning : warnings) state->report("warning", warning);
  ok_or_throw(engine_loop_->submit(std::move(prepared), from.options.jobs));
  return state;
}

}  // namespace flow
