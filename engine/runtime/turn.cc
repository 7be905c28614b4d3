// One turn: admit and apply what came in, answer the core's questions, ask the scheduler. What it
// decides waits for a commit (group_commit.cc), and only then is acted upon (execute_commands.cc).
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/base/size_units.hpp"
#include "engine/core/retry.hpp"
#include "engine/runs/run_archive.hpp"
#include "engine/runs/state_references.hpp"
#include "engine/runtime/data_locality.hpp"
#include "engine/runtime/engine_loop.hpp"
#include "engine/runtime/event_log.hpp"
#include "engine/sched/sched.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/value/cbor.hpp"

namespace flow {

namespace {

constexpr size_t kQueriesMax = 16'384;  // answered in one turn; the rest in the next
constexpr size_t kLookupsMax = 512;
constexpr size_t kProposalsMax = 4'096;
constexpr size_t kShortResultMax = 64;  // bytes of a result that a cache entry holds

bool is_query(const core::Command& command) {
  return std::holds_alternative<core::ResolveInputs>(command) ||
         std::holds_alternative<core::ExpandMap>(command) ||
         std::holds_alternative<core::ResolveWhen>(command) ||
         std::holds_alternative<core::GatherValue>(command);
}

/// A warning is a line of the log, and a row of its own that `flow why` finds without reading all.
void put_log(const core::AttemptId& id, LogRow row, uint64_t n, Batch& batch) {
  constexpr uint32_t kWarningStream = 3;  // of the executor's protocol
  constexpr size_t kWarningMax = 2'000;
  if (row.stream == kWarningStream) {
    row.stream = 0;
    batch.put(Family::kv, warning_key(id.run, id.unit, id.attempt, n),
              row.text.substr(0, kWarningMax));
  }
  batch.put(Family::logs, log_key(id.run, id.unit, id.attempt, n), encode_log(row));
}

// Only the attempt that finds damaged content reports the damage, because it removes the content.
// Add that report.
void note_missing_input(const core::Unit& unit, core::Failure& failure) {
  failure.code = core::kInputIsGone;
  bool has_failed_so = unit.detail && unit.detail->failure.cause == core::Cause::staging;
  if (has_failed_so)
    failure.message += "\nThe previous attempt failed: " + unit.detail->failure.message;
}

/// Of the acts after `from`, those that change a unit which a later one changes again.
std::vector<bool> superseded(const std::vector<core::Command>& effects, size_t from) {
  std::vector<size_t> changes;
  for (size_t i = from; i < effects.size(); i++) {
    if (std::holds_alternative<core::UnitChanged>(effects[i])) changes.push_back(i);
  }
  auto unit_of = [&](size_t effect) {
    const auto& change = std::get<core::UnitChanged>(effects[effect]);
    return std::tie(change.run, change.unit);
  };
  if (!std::ranges::is_sorted(changes, {}, unit_of)) std::ranges::stable_sort(changes, {}, unit_of);
  std::vector<bool> found(effects.size() - from);
  for (size_t i = 1; i < changes.size(); i++)
    found[changes[i - 1] - from] = unit_of(changes[i - 1]) == unit_of(changes[i]);
  return found;
}

}  // namespace

// What a worker tells of an attempt's end may be old: no head was there to hear it.
core::Time EngineLoop::event_time(const Input& input, core::Time now) const {
  if (input.at == 0) return now;
  core::Time assigned = state_.runs.at(input.attempt.run).units[input.attempt.unit].assigned;
  return std::clamp(input.at, std::min(assigned, now), now);
}

void EngineLoop::turn(std::vector<Input> inputs, bool may_defer) {
  bool is_alone = std::any_of(inputs.begin(), inputs.end(), [](const Input& input) {
    return input.control && input.reads_store;
  });
  if (is_alone) commit(false);
  decide(std::move(inputs));
  commit(may_defer && !is_alone);
}

void EngineLoop::decide(std::vector<Input> inputs) {
  if (state_.runs.empty()) clock_.catch_up();
  core::Time now = clock_.now();
  size_t effects_before = open_batch_.effects.size();
  for (Input& input : inputs) {
    if (input.control) {
      input.control(open_batch_.batch, state_);
      open_batch_.is_durable = open_batch_.is_durable || input.reads_store;
    }
    bool admitted = true;
    if (input.is_log) {
      open_batch_.log_cost += input.log_cost;
      LogRow row{input.attempt.attempt, input.stream, input.at, input.text, input.log_rank};
      put_log(input.attempt, std::move(row), next_log(input.attempt), open_batch_.batch);
    } else if (input.has_event) {
      gangs_.replace_by_first_failure(input.event);
      admitted = core::admit(state_, input.event);
      if (admitted) {
        if (auto* event = std::get_if<core::AttemptSucceeded>(&input.event))
          gangs_.expect_rank_ends(event->id);
        for (auto& [digest, bytes] : input.blobs) stage(digest, std::move(bytes));
        for (auto& [key, value] : input.kv)
          open_batch_.batch.put(Family::kv, std::move(key), std::move(value));
        record(std::move(input.event), event_time(input, now));
      } else {
        log_rejected_report(state_, input.event);
      }
    }
    if (input.done) open_batch_.outcomes.emplace_back(std::move(input.done), admitted);
  }
  membership_.lose_waiting();
  run_until_stable(now);
  if (!interruptions_.empty()) end_interruptions();
  save_clock();
  open_batch_.is_durable = open_batch_.is_durable || !open_batch_.records.empty();
  defer_starts(effects_before);
  // Told is what a turn made of a unit, not the ways it took.
  std::vector<bool> superseded_changes = superseded(open_batch_.effects, effects_before);
  for (size_t i = effects_before; i < open_batch_.effects.size(); i++) {
    const core::Command& effect = open_batch_.effects[i];
    if (const auto* unit = std::get_if<core::UnitChanged>(&effect)) {
      if (!superseded_changes[i - effects_before]) notify_unit(unit->run, unit->unit);
    } else if (const auto* run = std::get_if<core::RunChanged>(&effect)) {
      write_run_record(run->run);
      notify_run(run->run);
    } else if (const auto* ended = std::get_if<core::RunEnded>(&effect)) {
      archive(ended->run);
    }
  }
}

// What the next engine needs to know how long none was there.
void EngineLoop::save_clock() {
  constexpr core::Time kExactMs = 100;
  core::Time ahead = clock_.ahead_of_wall();
  if (open_batch_.records.empty() || std::abs(ahead - clock_saved_) < kExactMs) return;
  clock_saved_ = ahead;
  open_batch_.batch.put(Family::meta, kClockKey, std::to_string(ahead));
}

// Applies an admitted event and keeps it for the commit.
void EngineLoop::record(core::Event event, core::Time at) {
  core::Record record;
  record.sequence = state_.sequence + 1;
  record.at = at;
  record.event = std::move(event);
  auto* failed = std::get_if<core::AttemptFailed>(&record.event);
  if (failed != nullptr && failed->failure.cause == core::Cause::staging) {
    const core::Run& run = state_.runs.at(failed->id.run);
    failed->failure.code = 0;
    auto arguments = resolver_.arguments(run, failed->id.unit);
    References argument_blobs([this](const Digest& digest) { return read_blob(digest); });
    if (arguments.ok()) argument_blobs.add_encoded(*arguments);
    if (!arguments.ok() || is_missing_any(argument_blobs))
      note_missing_input(run.units[failed->id.unit], failed->failure);
  }
  if (const auto* success = std::get_if<core::AttemptSucceeded>(&record.event)) remember(*success);
  if (const auto* saved = std::get_if<core::CheckpointSaved>(&record.event))
    checkpointed_.push_back(saved->id);
  RecordLog record_log(state_, record);
  size_t commands_before = commands_.size();
  core::apply(state_, record, commands_);
  record_log.add_lines(state_, record, std::span(commands_).subspan(commands_before),
                       open_batch_.log_lines);
  if (const auto* assigned = std::get_if<core::Assigned>(&record.event))
    warn_of_small_share(*assigned);
  open_batch_.records.push_back(std::move(record));
}

void EngineLoop::stage(const Digest& digest, std::string bytes) {
  auto [place, added] = open_batch_.staged.try_emplace(digest, std::move(bytes));
  if (added) open_batch_.staged_bytes += place->second.size();
  if (!added || place->second.size() > kInlineBlobMax) {
    if (added) {
      auto put =
          blobs_.put(place->second, open_batch_.batch);  // a file under objects/, durable now
      if (!put.ok()) fail(put.error());
    }
    return;
  }
  open_batch_.batch.put(Family::blobs, std::string(digest.view()), place->second);
}

// A result enters the cache in the same batch as the event that says it is there.
void EngineLoop::remember(const core::AttemptSucceeded& event) {
  const core::Run& run = state_.runs.at(event.id.run);
  const TaskDef* def = InputResolver::def_of(run, event.id.unit);
  const core::Unit& unit = run.units[event.id.unit];
  const auto& staged = open_batch_.staged;
  auto bytes = staged.find(event.result);
  bool is_short = bytes != staged.end() && bytes->second.size() <= kShortResultMax;
  if (is_short && core::has_consumers(run, event.id.unit))
    resolver_.remember(event.result, bytes->second);
  if (!def->cache || def->kind == TaskKind::service) return;
  CacheEntry entry;
  entry.result = event.result;
  entry.fragment = event.fragment_digest;
  entry.has_fragment = event.fragment != nullptr;
  entry.run = event.id.run;
  entry.has_wait = event.waited || (unit.detail && !unit.detail->waits.empty());
  if (is_short) entry.value = bytes->second;
  entry.is_file = bytes != staged.end() && bytes->second.size() > kInlineBlobMax;
  if (entry.is_file) entry.size = bytes->second.size();
  entry.refers_to_blobs = bytes != staged.end() && holds_tag(bytes->second);
  open_batch_.batch.put(Family::cache, cache_key(unit.key), encode_cache_entry(entry));
  open_batch_.cached[unit.key] = std::move(entry);
}

// An attempt of another machine goes on when this engine's successor numbers its lines.
uint64_t EngineLoop::next_log(const core::AttemptId& id) {
  constexpr int kLinesBits = 40;
  // A rank or a worker that was cut off may report lines when its run has ended, whose count is
  // gone: they go behind all others. The run leaves the state some turns after its count.
  auto run = state_.runs.find(id.run);
  if (run == state_.runs.end() || core::is_final(run->second.status))
    return state_.epoch << kLinesBits | uint64_t{1} << (kLinesBits - 1) | late_logs_++;
  auto [count, is_new] = log_counts_.try_emplace({id.run, id.unit}, state_.epoch << kLinesBits);
  return count->second++;
}

void EngineLoop::run_until_stable(core::Time now) {
  size_t resolved_count = 0;
  InputLocality inputs(state_, resolver_, *blob_directory_);
  while (true) {
    for (core::Command& command : commands_) {
      if (is_query(command)) {
        queries_.push_back(std::move(command));
      } else {
        open_batch_.effects.push_back(std::move(command));
      }
    }
    commands_.clear();
    if (!queries_.empty()) {
      if (resolved_count++ >= kQueriesMax) return;  // commit what there is, then go on
      if (std::holds_alternative<core::ResolveInputs>(queries_.front())) {
        size_t before = queries_.size();
        resolve_inputs(now);
        resolved_count += before - queries_.size();
        continue;
      }
      core::Command query = std::move(queries_.front());
      queries_.pop_front();
      resolve(query, now);
      continue;
    }
    std::vector<core::Event> proposals = core::schedule(state_, kProposalsMax, &inputs);
    if (proposals.empty()) proposals = next_resize();
    if (proposals.empty()) return;
    for (core::Event& proposal : proposals) record_if_admitted(std::move(proposal), now);
  }
}

// Asked for when all is placed that is ready. A gang that has just saved its state loses least.
std::vector<core::Event> EngineLoop::next_resize() {
  while (!checkpointed_.empty()) {
    auto resize = core::elastic_scale_up(state_, checkpointed_.back(), options_.grow_after_ms);
    checkpointed_.pop_back();
    if (resize) return {*resize};
  }
  return {};
}

const std::string* EngineLoop::staged(const Digest& digest) const {
  for (const Commit* commit : {&open_batch_, &in_flight_}) {
    auto found = commit->staged.find(digest);
    if (found != commit->staged.end()) return &found->second;
  }
  return nullptr;
}

Result<std::string> EngineLoop::read_blob(const Digest& digest) {
  if (const std::string* bytes = staged(digest)) return *bytes;
  auto bytes = blobs_.get(digest);
  if (!bytes.ok() && blobs_.drop_if_damaged(digest)) {
    return environment_error(
        bytes.error().message +
        ". It was removed: the next `flow run`, or `flow resume` of a run that "
        "failed, computes it again");
  }
  return bytes;
}

RunContext* EngineLoop::context_of(const RunId& run) {
  auto found = contexts_.find(run);
  return found == contexts_.end() ? nullptr : &found->second;
}

bool EngineLoop::may_hit_cache(const core::Run& run, core::UnitId unit,
                               const CacheEntry& entry) const {
  const TaskDef& def = *InputResolver::def_of(run, unit);
  if (entry.run == run.id) return true;
  if (run.fresh) return false;
  if (def.cache_written) return true;
  if (entry.has_wait) return false;
  // A shell task whose result nothing takes runs for its effect: a deploy must deploy.
  bool for_effect =
      def.kind == TaskKind::shell && def.shell.outputs.empty() && !core::has_consumers(run, unit);
  return !for_effect;
}

void EngineLoop::record_if_admitted(core::Event event, core::Time now) {
  if (core::admit(state_, event)) record(std::move(event), now);
}

void EngineLoop::fail_unit(const RunId& run, core::UnitId unit, const Error& error,
                           core::Time now) {
  core::Failure failure;
  failure.cause =
      error.kind == ErrorKind::environment ? core::Cause::staging : core::Cause::user_error;
  failure.message = error.message;
  record_if_admitted(core::InputsFailed{run, unit, std::move(failure)}, now);
}

namespace {

/// What was not looked at when the run was submitted: of a dynamic task's call, or where it goes on
/// elsewhere. Where workers may join it is waited for.
Status check_memory(const core::State& state, const core::Run& run, core::UnitId unit) {
  const Resources& requested = InputResolver::def_of(run, unit)->resources;
  int64_t own = state.workers[0].info.memory_bytes;
  if (state.leads_workers || requested.memory_bytes <= own) return {};
  return user_error(
      fmt::format("`{}` asks for {} of memory, and this machine has {}: ask for less, or run it "
                  "where there is more",
                  InputResolver::unit_name(run, unit),
                  format_bytes(static_cast<uint64_t>(requested.memory_bytes)),
                  format_bytes(static_cast<uint64_t>(own))));
}

}  // namespace

// Of many at once: looking keys up is most of what a run with nothing to do costs.
void EngineLoop::resolve_inputs(core::Time now) {
  std::vector<ResolvedInputs> resolved;
  while (!queries_.empty() && resolved.size() < kLookupsMax) {
    const auto* query = std::get_if<core::ResolveInputs>(&queries_.front());
    if (query == nullptr) break;
    auto [run, unit] = *query;
    queries_.pop_front();
    auto found = state_.runs.find(run);
    if (found == state_.runs.end()) continue;
    auto key = resolver_.key(found->second, unit);
    if (!key.ok()) {
      fail_unit(run, unit, key.error(), now);
      continue;
    }
    const TaskDef& def = *InputResolver::def_of(found->second, unit);
    bool may_hit = def.cache && def.kind != TaskKind::service && !found->second.units[unit].forced;
    resolved.push_back({std::move(run), unit, *key, may_hit, std::nullopt});
  }
  look_up(resolved);
  for (ResolvedInputs& each : resolved) {
    auto found = state_.runs.find(each.run);
    if (found == state_.runs.end()) continue;
    core::InputsResolved event;
    event.run = each.run;
    event.unit = each.unit;
    event.key = each.key;
    if (each.entry && may_hit_cache(found->second, each.unit, *each.entry)) {
      event.result = each.entry->result;
      // Where its content is gone it is computed again.
      event.hit = holds_result_of(*each.entry);
      if (event.hit && each.entry->has_fragment) {
        event.fragment_digest = each.entry->fragment;
        event.fragment = fragment(each.entry->fragment);
        event.hit = event.fragment != nullptr;
      }
      if (event.hit && !each.entry->value.empty() && core::has_consumers(found->second, each.unit))
        resolver_.remember(each.entry->result, each.entry->value);
    }
    Status has_memory = event.hit ? Status() : check_memory(state_, found->second, each.unit);
    if (!has_memory.ok()) {
      fail_unit(each.run, each.unit, has_memory.error(), now);
      continue;
    }
    record_if_admitted(std::move(event), now);
  }
}

void EngineLoop::look_up(std::vector<ResolvedInputs>& resolved) {
  std::vector<ResolvedInputs*> lookups;
  std::vector<std::string> names;
  for (ResolvedInputs& each : resolved) {
    if (!each.may_hit) continue;
    for (const Commit* commit : {&open_batch_, &in_flight_}) {
      auto entry = commit->cached.find(each.key);
      if (entry == commit->cached.end()) continue;
      each.entry = entry->second;
      break;
    }
    if (!each.entry) {
      lookups.push_back(&each);
      names.push_back(cache_key(each.key));
    }
  }
  if (lookups.empty()) return;
  auto rows = store_->get_many(Family::cache, {names.begin(), names.end()});
  if (!rows.ok()) return fail(rows.error());
  for (size_t i = 0; i < lookups.size(); i++) {
    if (!(*rows)[i]) continue;
    auto entry = decode_cache_entry(*(*rows)[i]);
    if (entry.ok()) lookups[i]->entry = std::move(*entry);
  }
}

std::optional<CacheEntry> EngineLoop::cached(const Digest& key) {
  std::vector<ResolvedInputs> one(1);
  one[0].key = key;
  one[0].may_hit = true;
  look_up(one);
  return one[0].entry;
}

void EngineLoop::resolve(const core::Command& query, core::Time now) {
  if (const auto* q = std::get_if<core::ExpandMap>(&query)) {
    auto found = state_.runs.find(q->run);
    if (found == state_.runs.end()) return;
    auto count = resolver_.map_count(found->second, q->unit);
    if (!count.ok()) return fail_unit(q->run, q->unit, count.error(), now);
    return record_if_admitted(core::MapExpanded{q->run, q->unit, *count}, now);
  }
  if (const auto* q = std::get_if<core::ResolveWhen>(&query)) {
    auto found = state_.runs.find(q->run);
    if (found == state_.runs.end()) return;
    auto side = resolver_.condition(found->second, q->unit);
    if (!side.ok()) return fail_unit(q->run, q->unit, side.error(), now);
    return record_if_admitted(core::WhenResolved{q->run, q->unit, *side}, now);
  }
  const auto& q = std::get<core::GatherValue>(query);
  auto found = state_.runs.find(q.run);
  if (found == state_.runs.end()) return;
  auto bytes = gather(found->second, q.unit);
  if (!bytes.ok()) {
    if (q.unit != kNoNode) return fail_unit(q.run, q.unit, bytes.error(), now);
    warn(q.run, "the result is null, because it can't be put together: " + bytes.error().message);
    bytes = encode_value(Value::null());
  }
  Digest digest = sha256(*bytes);
  stage(digest, std::move(*bytes));
  record_if_admitted(core::ValueGathered{q.run, q.unit, digest}, now);
}

Result<std::string> EngineLoop::gather(const core::Run& run, core::UnitId unit) {
  bool is_list = unit != kNoNode && run.units[unit].instance < 0 &&
                 run.node(run.units[unit].node).kind == NodeKind::map;
  if (!is_list) {
    auto value = resolver_.gather(run, unit);
    FLOW_TRY(value);
    return encode_value(*value);
  }
  // The canonical bytes of a list are its header and its items' bytes: nothing needs decoding.
  std::vector<core::UnitId> instances = core::instances_of(run, unit);
  std::string bytes;
  append_list_header(instances.size(), bytes);
  static const std::string nil = encode_value(Value());
  static const std::string null = encode_value(Value::null());
  for (core::UnitId instance : instances) {
    auto item = read_blob(run.units[instance].result);
    FLOW_TRY(item);
    bytes += *item == nil ? null : *item;
  }
  return bytes;
}

std::shared_ptr<const PlanFragment> EngineLoop::fragment(const Digest& digest) {
  auto bytes = read_blob(digest);
  if (!bytes.ok()) return nullptr;
  auto decoded = decode_fragment(*bytes);
  if (!decoded.ok()) return nullptr;
  return std::make_shared<const PlanFragment>(std::move(*decoded));
}

}  // namespace flow
