#include "engine/runtime/script_functions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "engine/submission/rebuild.hpp"
#include "engine/value/outline.hpp"

namespace flow {

namespace {

constexpr size_t kFunctionsMax = 6;         // of a call: one per option
constexpr size_t kCallsMax = 1000;          // of one build
constexpr size_t kArgumentsMax = 16 << 20;  // bytes, of one build
constexpr size_t kAnswersMax = 100'000;     // of a run, that are remembered

std::string bytes_of(const Value& items) { return encode_value(items); }

/// The definition's resources with those that its functions computed.
core::AttemptResources merged(const TaskDef& def, const BuildReply::CallResources& computed) {
  core::AttemptResources out;
  out.resources = def.resources;
  out.timeout_ms = def.timeout_ms;
  auto is_function = [&](ResourceFunction option) {
    return (def.resource_functions & option) != 0;
  };
  const Resources& from = computed.resources;
  if (is_function(kCpusFunction)) out.resources.cpus_milli = from.cpus_milli;
  if (is_function(kMemoryFunction)) out.resources.memory_bytes = from.memory_bytes;
  if (is_function(kGpusFunction)) out.resources.gpus_milli = from.gpus_milli;
  if (is_function(kGpuMemoryFunction)) out.resources.gpu_memory_bytes = from.gpu_memory_bytes;
  if (is_function(kCustomResourcesFunction)) out.resources.custom_resources = from.custom_resources;
  if (is_function(kTimeoutFunction)) out.timeout_ms = computed.timeout_ms;
  return out;
}

}  // namespace

void ScriptFunctions::post(std::function<void()> in_a_turn) {
  TurnInput input;
  input.what = StateCallback{[run = std::move(in_a_turn)](Batch&, core::State&) { run(); }};
  inbox_.post(std::move(input));
}

Result<BuildOrder> ScriptFunctions::order_of(const core::RunId& run_id) {
  const RunContext* context = active_runs_.find(run_id);
  if (context == nullptr) return internal_error("the run has no code");
  return rebuild_order(state_.runs.at(run_id).plan, *context);
}

// ---- tags

void ScriptFunctions::request_tags(const core::RunId& run_id, core::UnitId unit) {
  const core::Run& run = state_.runs.at(run_id);
  auto items = resolver_.map_items(run, unit);
  if (!items.ok()) return fail_tags(run_id, unit, items.error().message);
  auto order = order_of(run_id);
  if (!order.ok()) return fail_tags(run_id, unit, order.error().message);
  add_tag_calls(*order, run.units[unit].node, *items);
  Digest list = sha256(bytes_of(*items));
  queue_.add(std::move(*order), [this, run_id, unit, list](const Result<BuildReply>& reply) {
    post([this, run_id, unit, list, answer = tags_of(reply)] {
      answer_tags(run_id, unit, list, answer);
    });
  });
}

void ScriptFunctions::answer_tags(const core::RunId& run_id, core::UnitId unit, const Digest& list,
                                  const Result<std::vector<std::string>>& tags) {
  auto found = state_.runs.find(run_id);
  if (found == state_.runs.end()) return;
  bool is_asked = unit < found->second.units.size() &&
                  found->second.units[unit].phase == core::Phase::resolving;
  if (!is_asked) return;  // the run was cancelled
  auto items = resolver_.map_items(found->second, unit);
  // After a retry of its producer the list may be another one, and a request for that follows.
  if (!items.ok() || sha256(bytes_of(*items)) != list) return;
  if (!tags.ok()) return fail_tags(run_id, unit, tags.error().message);
  core::MapExpanded event{run_id, unit, static_cast<uint32_t>(items->as_table().list.size()),
                          *tags};
  if (!recorder_.record_if_admitted(std::move(event), recorder_.turn_time()))
    fail_tags(run_id, unit, "its tag function gave other tags than were asked for");
}

void ScriptFunctions::fail_tags(const core::RunId& run, core::UnitId unit, const std::string& why) {
  core::Failure failure;
  failure.cause = core::Cause::user_error;
  failure.message = fmt::format("the items of `{}` got no tags: {}",
                                core::unit_name(state_.runs.at(run), unit), why);
  recorder_.record_if_admitted(core::InputsFailed{run, unit, std::move(failure)},
                               recorder_.turn_time());
}

// ---- resources

ScriptFunctions::RunCalls& ScriptFunctions::calls_of(const core::RunId& run) {
  auto found = calls_.find(run);
  uint64_t context = active_runs_.number_of(run);
  if (found != calls_.end()) {
    if (found->second.context != context) {  // it was resumed, perhaps with new code
      found->second = {};
      found->second.context = context;
    }
    return found->second;
  }
  std::erase_if(calls_, [&](const auto& each) {
    return !active_runs_.contains(each.first) && !each.second.is_building;
  });
  RunCalls& calls = calls_[run];
  calls.context = context;
  return calls;
}

bool ScriptFunctions::is_waiting(const core::RunId& run, core::UnitId unit) const {
  auto found = state_.runs.find(run);
  return found != state_.runs.end() && unit < found->second.units.size() &&
         found->second.units[unit].phase == core::Phase::sizing;
}

Result<ScriptFunctions::Call> ScriptFunctions::call_of(const core::Run& run, core::UnitId unit) {
  auto args = resolver_.arguments(run, unit);
  FLOW_TRY(args);
  auto value = decode_value(*args);
  FLOW_TRY(value);
  const TaskNode& node = run.node(run.units[unit].node);
  Call out;
  out.call = {node.def, std::move(*args), node.named_args,
              core::next_attempt(state_, run, unit).attempt,
              run.plan->defs[node.def].resource_functions};
  std::string text = fmt::format("{} {} {} ", node.def, node.named_args, out.call.attempt);
  out.id = sha256(text + encode_value(outline_of(*value)));
  return out;
}

void ScriptFunctions::request_resources(const core::RunId& run_id, core::UnitId unit) {
  if (!is_waiting(run_id, unit)) return;  // a query that was resolved in a later turn
  const core::Run& run = state_.runs.at(run_id);
  RunCalls& calls = calls_of(run_id);
  auto call = call_of(run, unit);
  if (!call.ok()) return fail_resources(run_id, unit, call.error());
  if (answer_resources(run, unit, call->id, calls.answers)) return;
  calls.waiting.push_back(unit);
  post_flush(run_id, calls);
}

/// A later turn builds for all units that wait by then.
void ScriptFunctions::post_flush(const core::RunId& run, RunCalls& calls) {
  if (calls.is_flush_posted || calls.is_building) return;
  calls.is_flush_posted = true;
  post([this, run] { flush(run); });
}

/// Whether the answers had this call: then the query is answered.
bool ScriptFunctions::answer_resources(const core::Run& run, core::UnitId unit, const CallId& id,
                                       const std::map<CallId, BuildReply::CallResources>& answers) {
  auto found = answers.find(id);
  if (found == answers.end()) return false;
  const BuildReply::CallResources& computed = found->second;
  if (!computed.error.empty()) {
    fail_resources(run.id, unit, user_error(computed.error));
    return true;
  }
  core::ResourcesComputed event{run.id, unit, merged(*core::def_of(run, unit), computed)};
  event.computed.attempt = core::next_attempt(state_, run, unit).attempt;
  if (!recorder_.record_if_admitted(std::move(event), recorder_.turn_time()))
    fail_resources(run.id, unit, user_error("they returned values that are not allowed"));
  return true;
}

void ScriptFunctions::flush(const core::RunId& run_id) {
  RunCalls& calls = calls_of(run_id);
  calls.is_flush_posted = false;
  auto found = state_.runs.find(run_id);
  if (found == state_.runs.end() || calls.is_building) return;
  std::vector<core::UnitId> units;
  std::vector<CallId> ids;
  std::set<CallId> known;
  std::vector<BuildOrder::ResourceCall> asked;
  size_t bytes = 0, next = 0;
  for (; next < calls.waiting.size(); next++) {
    core::UnitId unit = calls.waiting[next];
    if (asked.size() >= kCallsMax || bytes >= kArgumentsMax) break;
    if (!is_waiting(run_id, unit)) continue;
    auto call = call_of(found->second, unit);
    if (!call.ok()) {
      fail_resources(run_id, unit, call.error());
      continue;
    }
    units.push_back(unit);
    if (!known.insert(call->id).second) continue;
    bytes += call->call.args.size();
    ids.push_back(call->id);
    asked.push_back(std::move(call->call));
  }
  calls.waiting.erase(calls.waiting.begin(), calls.waiting.begin() + static_cast<int64_t>(next));
  if (units.empty()) return;
  auto order = order_of(run_id);
  if (!order.ok()) return finish(run_id, units, {}, order.error());
  add_time(*order, asked.size() * kFunctionsMax);
  order->resource_calls = std::move(asked);
  calls.is_building = true;
  uint64_t context = calls.context;
  queue_.add(std::move(*order), [=, this](const Result<BuildReply>& reply) {
    post([=, this] {
      if (calls_of(run_id).context == context) finish(run_id, units, ids, reply);
    });
  });
}

void ScriptFunctions::finish(const core::RunId& run_id, const std::vector<core::UnitId>& units,
                             const std::vector<CallId>& ids, const Result<BuildReply>& reply) {
  RunCalls& calls = calls_of(run_id);
  calls.is_building = false;
  std::optional<Error> problem;  // of the build
  if (!reply.ok()) {
    problem = reply.error();
  } else if (!reply->errors.empty()) {
    problem = user_error(reply->errors.front());
  } else if (reply->resources.size() != ids.size()) {
    problem = internal_error("the build gave another number of answers");
  }
  if (calls.answers.size() > kAnswersMax) calls.answers.clear();
  for (size_t i = 0; i < ids.size() && !problem; i++)
    calls.answers.insert_or_assign(ids[i], reply->resources[i]);
  for (core::UnitId unit : units) {
    if (!is_waiting(run_id, unit)) continue;  // its run was stopped, or has ended
    if (problem) {
      fail_resources(run_id, unit, *problem);
    } else {
      request_resources(run_id, unit);  // the arguments may have changed meanwhile
    }
  }
  if (!calls.waiting.empty()) post_flush(run_id, calls);
}

void ScriptFunctions::fail_resources(const core::RunId& run, core::UnitId unit, const Error& why) {
  core::Failure failure;
  failure.cause =
      why.kind == ErrorKind::environment ? core::Cause::staging : core::Cause::user_error;
  failure.message = fmt::format("the functions of the resource options of `{}` failed: {}",
                                core::shown_name(state_.runs.at(run), unit), why.message);
  recorder_.record_if_admitted(core::InputsFailed{run, unit, std::move(failure)},
                               recorder_.turn_time());
}

}  // namespace flow
