#include "engine/runtime/query_handler.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "engine/base/failpoint.hpp"
#include "engine/base/size_units.hpp"
#include "engine/core/rollover.hpp"
#include "engine/value/cbor.hpp"

namespace flow {

namespace {

constexpr size_t kLookupsMax = 512;  // cache keys per lookup

/// Checks what the submission could not: the call of a dynamic task, or a run that is resumed on
/// another machine. If workers may join, the task waits for a larger one.
Status check_memory(const core::State& state, const core::Run& run, core::UnitId unit) {
  const Resources& requested = core::def_of(run, unit)->resources;
  int64_t own = state.workers[0].info.memory_bytes;
  if (state.leads_workers || requested.memory_bytes <= own) return {};
  return user_error(fmt::format(
      "`{}` asks for {} of memory, and this machine has {}: ask for less, or run it "
      "where there is more",
      core::shown_name(run, unit), format_bytes(static_cast<uint64_t>(requested.memory_bytes)),
      format_bytes(static_cast<uint64_t>(own))));
}

std::string shown_result(const Value& value) {
  return value.is_nil() ? "nothing" : short_json(value);
}

/// The call of a canary's gate with what was measured in the step.
PlanFragment gate_fragment(const core::Run& run, const core::GateCall& call,
                           const core::CallGate& measured) {
  constexpr double kUsPerMs = 1000;
  TaskNode node;
  node.name = call.name;
  node.def = call.def;
  node.line = run.plan->defs[call.def].line;
  node.args = Value::list(
      {Value::map({{Value("version"), Value(run.id)},
                   {Value("step"), Value(int64_t{measured.step} + 1)},
                   {Value("requests"), Value(static_cast<int64_t>(measured.requests))},
                   {Value("errors"), Value(static_cast<int64_t>(measured.errors))},
                   {Value("p50"), Value(static_cast<double>(measured.p50_us) / kUsPerMs)},
                   {Value("p99"), Value(static_cast<double>(measured.p99_us) / kUsPerMs)}})});
  PlanFragment fragment;
  fragment.nodes.push_back(std::move(node));
  fragment.result = Value(Ref{0, {}});
  return fragment;
}

}  // namespace

bool is_query(const core::Command& command) {
  return std::holds_alternative<core::ResolveInputs>(command) ||
         std::holds_alternative<core::ExpandMap>(command) ||
         std::holds_alternative<core::ResolveWhen>(command) ||
         std::holds_alternative<core::ComputeResources>(command) ||
         std::holds_alternative<core::CallGate>(command) ||
         std::holds_alternative<core::ReadGate>(command) ||
         std::holds_alternative<core::GatherValue>(command);
}

Result<std::string> gather_value(InputResolver& resolver, const TurnBlobs& blobs,
                                 const core::Run& run, core::UnitId unit) {
  bool is_list = unit != kNoNode && run.units[unit].instance < 0 &&
                 run.node(run.units[unit].node).kind == NodeKind::map;
  if (!is_list) {
    auto value = resolver.gather(run, unit);
    FLOW_TRY(value);
    return encode_value(*value);
  }
  // The canonical bytes of a list are its header and its items' bytes: nothing needs decoding.
  static const std::string nil = encode_value(Value());
  static const std::string null = encode_value(Value::null());
  static const std::string missing = encode_value(Value::missing());
  std::string items;
  size_t count = 0;
  for (core::UnitId instance : core::instances_of(run, unit)) {
    if (run.units[instance].gives_missing) continue;
    auto item = blobs.read(run.units[instance].result);
    FLOW_TRY(item);
    if (*item == missing) continue;
    items += *item == nil ? null : *item;
    count++;
  }
  std::string bytes;
  append_list_header(count, bytes);
  return bytes + items;
}

size_t QueryHandler::resolve_some(core::Time now) {
  if (std::holds_alternative<core::ResolveInputs>(queries_.front())) return resolve_inputs(now);
  core::Command query = std::move(queries_.front());
  queries_.pop_front();
  resolve(query, now);
  return 1;
}

// A run that has nothing to do spends most of its time here.
size_t QueryHandler::resolve_inputs(core::Time now) {
  std::vector<CacheRequest> requests;
  size_t taken = 0;
  for (; !queries_.empty() && requests.size() < kLookupsMax; taken++) {
    auto* query = std::get_if<core::ResolveInputs>(&queries_.front());
    if (query == nullptr) break;
    core::RunId run = query->run;
    core::UnitId unit = query->unit++;
    if (--query->count == 0) queries_.pop_front();
    auto found = state_.runs.find(run);
    if (found == state_.runs.end()) continue;
    auto missing = resolver_.why_missing(found->second, unit);
    if (missing.ok() && !missing->empty()) {
      recorder_.record_if_admitted(core::InputsMissing{run, unit, std::move(*missing)}, now);
      continue;
    }
    auto key = missing.ok() ? resolver_.key(found->second, unit) : Result<Digest>(missing.error());
    if (!key.ok()) {
      fail_unit(run, unit, key.error(), now);
      continue;
    }
    const TaskDef& def = *core::def_of(found->second, unit);
    bool may_hit = def.cache && def.kind != TaskKind::service && !found->second.units[unit].forced;
    requests.push_back({std::move(run), unit, *key, may_hit, std::nullopt});
  }
  Status looked_up = cache_.look_up(requests);
  if (!looked_up.ok()) stop_.set(looked_up.error());
  for (CacheRequest& request : requests) answer(request, now);
  return taken;
}

void QueryHandler::answer(CacheRequest& request, core::Time now) {
  auto found = state_.runs.find(request.run);
  if (found == state_.runs.end()) return;
  core::InputsResolved event;
  event.run = request.run;
  event.unit = request.unit;
  event.key = request.key;
  if (request.entry && CacheLookup::may_hit(found->second, request.unit, *request.entry)) {
    event.result = request.entry->result;
    event.hit = blobs_.holds_result_of(*request.entry);  // otherwise it is computed again
    if (event.hit && request.entry->has_fragment) {
      event.fragment_digest = request.entry->fragment;
      event.fragment = blobs_.fragment(request.entry->fragment);
      event.hit = event.fragment != nullptr;
    }
    bool is_taken = event.hit && core::has_consumers(found->second, request.unit);
    if (is_taken && !request.entry->value.empty())
      resolver_.remember(request.entry->result, request.entry->value);
  }
  Status has_memory = event.hit ? Status() : check_memory(state_, found->second, request.unit);
  if (!has_memory.ok()) return fail_unit(request.run, request.unit, has_memory.error(), now);
  recorder_.record_if_admitted(std::move(event), now);
}

void QueryHandler::resolve(const core::Command& query, core::Time now) {
  auto run_of = [this](const core::RunId& id) {
    auto found = state_.runs.find(id);
    return found == state_.runs.end() ? nullptr : &found->second;
  };
  if (const auto* expand = std::get_if<core::ExpandMap>(&query)) {
    const core::Run* run = run_of(expand->run);
    if (run == nullptr) return;
    auto missing = resolver_.why_missing(*run, expand->unit);
    if (missing.ok() && !missing->empty()) {
      core::InputsMissing event{expand->run, expand->unit, std::move(*missing)};
      recorder_.record_if_admitted(std::move(event), now);
      return;
    }
    auto count = resolver_.map_count(*run, expand->unit);
    if (!count.ok()) return fail_unit(expand->run, expand->unit, count.error(), now);
    bool is_tagged = run->node(run->units[expand->unit].node).detail().tags_items && *count > 0;
    if (is_tagged) return requests_.tags(expand->run, expand->unit);
    recorder_.record_if_admitted(core::MapExpanded{expand->run, expand->unit, *count}, now);
  } else if (const auto* when = std::get_if<core::ResolveWhen>(&query)) {
    const core::Run* run = run_of(when->run);
    if (run == nullptr) return;
    auto condition = resolver_.condition(*run, when->unit);
    if (!condition.ok()) return fail_unit(when->run, when->unit, condition.error(), now);
    recorder_.record_if_admitted(core::WhenResolved{when->run, when->unit, *condition}, now);
  } else if (const auto* compute = std::get_if<core::ComputeResources>(&query)) {
    if (run_of(compute->run) != nullptr) requests_.resources(compute->run, compute->unit);
  } else if (const auto* gate = std::get_if<core::CallGate>(&query)) {
    if (const core::Run* run = run_of(gate->run)) call_gate(*gate, *run, now);
  } else if (const auto* answer = std::get_if<core::ReadGate>(&query)) {
    if (const core::Run* run = run_of(answer->run)) read_gate(*answer, *run, now);
  } else {
    const auto& value = std::get<core::GatherValue>(query);
    if (const core::Run* run = run_of(value.run)) gather(value, *run, now);
  }
}

void QueryHandler::call_gate(const core::CallGate& query, const core::Run& run, core::Time now) {
  auto call = core::next_gate_call(run);
  if (!call) {
    core::GateAnswered event{query.run, query.step, false, "its gate is no task of the script"};
    recorder_.record_if_admitted(std::move(event), now);
    return;
  }
  failpoint("gate-before-call");
  auto fragment = std::make_shared<const PlanFragment>(gate_fragment(run, *call, query));
  std::string bytes = encode_fragment(*fragment);
  Digest digest = sha256(bytes);
  blobs_.stage(digest, std::move(bytes));
  core::GateCalled event{query.run, query.step, std::move(fragment), digest};
  recorder_.record_if_admitted(std::move(event), now);
}

void QueryHandler::read_gate(const core::ReadGate& query, const core::Run& run, core::Time now) {
  failpoint("gate-before-answer");
  core::GateAnswered event{query.run, query.step};
  auto result = resolver_.result_of(run, query.unit);
  bool is_boolean = result.ok() && (*result)->kind() == Value::Kind::boolean;
  event.passes = is_boolean && (*result)->truthy();
  if (!event.passes)
    event.why = fmt::format("its gate `{}` returned {}", core::shown_name(run, query.unit),
                            result.ok() ? shown_result(**result) : result.error().message);
  recorder_.record_if_admitted(std::move(event), now);
}

void QueryHandler::gather(const core::GatherValue& query, const core::Run& run, core::Time now) {
  auto bytes = gather_value(resolver_, blobs_, run, query.unit);
  if (!bytes.ok()) {
    if (query.unit != kNoNode) return fail_unit(query.run, query.unit, bytes.error(), now);
    feed_.warn(query.run,
               "the result is null, because it can't be assembled: " + bytes.error().message);
    bytes = encode_value(Value::null());
  }
  Digest digest = sha256(*bytes);
  blobs_.stage(digest, std::move(*bytes));
  recorder_.record_if_admitted(core::ValueGathered{query.run, query.unit, digest}, now);
}

void QueryHandler::fail_unit(const core::RunId& run, core::UnitId unit, const Error& error,
                             core::Time now) {
  core::Failure failure;
  failure.cause =
      error.kind == ErrorKind::environment ? core::Cause::staging : core::Cause::user_error;
  failure.message = error.message;
  recorder_.record_if_admitted(core::InputsFailed{run, unit, std::move(failure)}, now);
}

}  // namespace flow
