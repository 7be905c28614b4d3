#include "engine/runtime/active_runs.hpp"

#include <algorithm>
#include <utility>

#include "engine/store/row_keys.hpp"

namespace flow {

bool has_kept_options(const RunContext& context) {
  const RunOptions unset;
  return context.is_detached || context.grace_ms != unset.grace_ms ||
         context.serve_for_ms != unset.serve_for_ms || context.serve_until_ms >= 0 ||
         context.front_lease_ms != unset.front_lease_ms;
}

void put_kept_options(const RunContext& context, Batch& batch) {
  std::string key = detached_key(context.record.id);
  if (!has_kept_options(context)) return batch.erase(Family::kv, std::move(key));
  DetachedRun row;
  row.grace_ms = context.grace_ms;
  bool has_end = context.serve_until_ms >= 0;  // its time runs: what is left follows from the end
  row.serve_for_ms = has_end ? std::max<int64_t>(context.serve_for_ms, 0) : context.serve_for_ms;
  row.serve_until_ms = context.serve_until_ms;
  row.front_lease_ms = context.front_lease_ms;
  row.is_of_head = context.is_of_head;
  row.is_detached = context.is_detached;
  batch.put(Family::kv, std::move(key), encode_detached_run(row));
}

void put_notify_settings(const RunContext& context, Batch& batch) {
  std::string key = notify_key(context.record.id);
  if (context.notify.empty()) return batch.erase(Family::kv, std::move(key));
  batch.put(Family::kv, std::move(key), context.notify);
}

void keep_options(RunContext& context, const DetachedRun& before) {
  const RunOptions unset;
  if (context.grace_ms == unset.grace_ms) context.grace_ms = before.grace_ms;
  if (context.serve_for_ms == unset.serve_for_ms) {
    context.serve_for_ms = before.serve_for_ms;
    context.serve_until_ms = before.serve_until_ms;
  }
  if (context.front_lease_ms == unset.front_lease_ms)
    context.front_lease_ms = before.front_lease_ms;
}

RunContext* ActiveRuns::find(const core::RunId& run) {
  auto found = contexts_.find(run);
  return found == contexts_.end() ? nullptr : &found->second.context;
}

RunListener* ActiveRuns::listener_of(const core::RunId& run) {
  RunContext* context = find(run);
  return context == nullptr ? nullptr : context->listener.get();
}

std::optional<core::Time> ActiveRuns::take_serve_end(const core::RunId& run, core::Time now,
                                                     Batch& batch) {
  auto found = state_.runs.find(run);
  RunContext* context = find(run);
  bool begins = found != state_.runs.end() && found->second.status == core::RunStatus::serving &&
                context != nullptr && context->serve_for_ms >= 0;
  if (!begins) return std::nullopt;
  if (context->serve_until_ms < 0) {
    context->serve_until_ms = now + context->serve_for_ms;
    put_kept_options(*context, batch);
  }
  context->serve_for_ms = -1;
  return context->serve_until_ms;
}

bool ActiveRuns::is_being_interrupted(const core::RunId& id) const {
  auto run = state_.runs.find(id);
  if (run == state_.runs.end() || !contexts_.contains(id)) return false;
  const core::Run& r = run->second;
  bool is_over = core::is_final(r.status) || r.status == core::RunStatus::interrupted;
  return !is_over && r.stopping && !r.cancelling && !r.ending;
}

bool ActiveRuns::is_at_rest(const core::RunId& id) const {
  auto run = state_.runs.find(id);
  if (run == state_.runs.end() || !contexts_.contains(id)) return true;
  return core::is_final(run->second.status) || run->second.status == core::RunStatus::interrupted;
}

void ActiveRuns::end_waiting_calls(std::vector<std::pair<OnAdmission, bool>>& outcomes) {
  auto end = [&](Latches& latches, const auto& is_waiting) {
    for (auto each = latches.begin(); each != latches.end();) {
      if (is_waiting(each->first)) {
        ++each;
        continue;
      }
      outcomes.emplace_back([latch = each->second](bool is_done) { latch->open(is_done); }, true);
      each = latches.erase(each);
    }
  };
  end(interruptions_, [this](const core::RunId& run) { return is_being_interrupted(run); });
  end(rests_, [this](const core::RunId& run) { return !is_at_rest(run); });
}

void ActiveRuns::end_if_interrupted(const core::RunId& run) {
  auto found = state_.runs.find(run);
  RunListener* listener = listener_of(run);
  if (found == state_.runs.end() || listener == nullptr) return;
  if (found->second.status != core::RunStatus::interrupted) return;
  listener->on_end();
  find(run)->listener.reset();
}

void ActiveRuns::end_all(const std::optional<Error>& why) {
  for (Latches* latches : {&interruptions_, &rests_})
    for (auto& [id, latch] : std::exchange(*latches, {})) latch->open(false);
  for (auto& [id, entry] : contexts_) {
    if (!entry.context.listener) continue;
    if (why) {
      entry.context.listener->fail(*why);
    } else {
      entry.context.listener->on_end();
    }
  }
}

}  // namespace flow
