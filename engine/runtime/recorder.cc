#include "engine/runtime/recorder.hpp"

#include <iterator>
#include <span>

#include "engine/core/retry.hpp"
#include "engine/runs/attempt_history.hpp"
#include "engine/runtime/event_log.hpp"
#include "engine/store/row_keys.hpp"
#include "engine/value/cbor.hpp"

namespace flow {

namespace {

constexpr size_t kShortResultMax = 64;  // bytes of a result that a cache entry holds

}  // namespace

bool Recorder::record_if_admitted(core::Event event, core::Time at) {
  if (!core::admit(state_, event)) return false;
  record(std::move(event), at);
  return true;
}

void Recorder::record(core::Event event, core::Time at) {
  core::Record record;
  record.sequence = state_.sequence + 1;
  record.at = at;
  record.event = std::move(event);
  auto* failed = std::get_if<core::AttemptFailed>(&record.event);
  if (failed != nullptr && failed->failure.cause == core::Cause::staging)
    note_missing_input(failed->id, failed->failure);
  if (const auto* success = std::get_if<core::AttemptSucceeded>(&record.event))
    put_cache_entry(*success);
  if (const auto* saved = std::get_if<core::CheckpointSaved>(&record.event))
    checkpointed_.push_back(saved->id);
  RecordLog record_log(state_, record);
  AttemptHistory history(state_, record);
  size_t commands_before = commands_.size();
  core::apply(state_, record, commands_);
  keep_urls(record.event);
  auto commands = std::span(commands_).subspan(commands_before);
  record_log.add_lines(state_, record, commands, open_.log_lines);
  telemetry_.add(state_, record, commands, open_.spans);
  history.add_rows(state_, record, commands, open_.batch);
  if (const auto* assigned = std::get_if<core::Assigned>(&record.event))
    feed_.warn_of_small_share(*assigned);
  open_.records.push_back(std::move(record));
}

// A service may die before what waited for it gathers its value.
void Recorder::keep_urls(const core::Event& event) {
  if (const auto* ready = std::get_if<core::ServiceReady>(&event))
    return resolver_.note_url(state_.runs.at(ready->id.run), ready->id.unit);
  if (const auto* deleted = std::get_if<core::RunDeleted>(&event))
    return resolver_.forget_urls(deleted->run);
  if (!std::holds_alternative<core::EngineStarted>(event)) return;
  for (const auto& [id, run] : state_.runs)  // some continue at workers
    for (core::UnitId service : run.services)
      if (core::is_up(run.units[service])) resolver_.note_url(run, service);
}

void Recorder::add_commands(std::vector<core::Command> commands) {
  commands_.insert(commands_.end(), std::make_move_iterator(commands.begin()),
                   std::make_move_iterator(commands.end()));
}

std::optional<core::AttemptId> Recorder::take_checkpointed() {
  if (checkpointed_.empty()) return std::nullopt;
  core::AttemptId newest = std::move(checkpointed_.back());
  checkpointed_.pop_back();
  return newest;
}

// The failure gets the code for a lost input if one is lost. Only the attempt that finds a damaged
// blob reports the damage, because it deletes the blob; the failure quotes that report.
void Recorder::note_missing_input(const core::AttemptId& id, core::Failure& failure) {
  const core::Run& run = state_.runs.at(id.run);
  failure.code = 0;
  auto arguments = resolver_.arguments(run, id.unit);
  References references([this](const Digest& digest) { return blobs_.read(digest); });
  if (arguments.ok()) references.add_encoded(*arguments);
  if (arguments.ok() && !blobs_.is_missing_any(references)) return;
  failure.code = core::kInputIsGone;
  const core::Unit& unit = run.units[id.unit];
  if (unit.detail && unit.detail->failure.cause == core::Cause::staging)
    failure.message += "\nThe previous attempt failed: " + unit.detail->failure.message;
}

// A result enters the cache in the batch of the event that reports it.
void Recorder::put_cache_entry(const core::AttemptSucceeded& event) {
  const core::Run& run = state_.runs.at(event.id.run);
  const TaskDef* def = core::def_of(run, event.id.unit);
  const core::Unit& unit = run.units[event.id.unit];
  auto bytes = open_.staged.find(event.result);
  bool is_short = bytes != open_.staged.end() && bytes->second.size() <= kShortResultMax;
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
  entry.is_file = bytes != open_.staged.end() && bytes->second.size() > kInlineBlobMax;
  if (entry.is_file) entry.size = bytes->second.size();
  entry.refers_to_blobs = bytes != open_.staged.end() && holds_tag(bytes->second);
  open_.batch.put(Family::cache, cache_key(unit.key), encode_cache_entry(entry));
  open_.cached[unit.key] = std::move(entry);
}

}  // namespace flow
