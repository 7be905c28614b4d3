// A rollback while a canary is under way: it ends the canary, and the version before keeps the
// name.
#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <utility>

#include "engine/api/local_engine.hpp"
#include "engine/core/rollover.hpp"
#include "engine/runs/served_versions.hpp"
#include "engine/store/row_keys.hpp"

namespace flow {

namespace {

constexpr std::chrono::milliseconds kLookEvery{100};

std::string reason_of(const std::string& name) { return fmt::format("`flow rollback {}`", name); }

/// The step of the canary that is under way, of a version of this name.
struct Canary {
  RunId run;
  uint32_t step = 0;
  bool is_reverting = false;  // it has been ended: the traffic returns
};

std::optional<Canary> canary_under_way(const core::State& state, const std::string& name) {
  for (const auto& [id, run] : state.runs) {
    const core::Rollover& rollover = run.rollover;
    bool has_part = run.name == name && core::is_under_way(rollover.phase);
    if (!has_part || core::canary_of(run).percents.empty()) continue;
    return Canary{id, rollover.step, rollover.phase == core::RolloverPhase::reverting};
  }
  return std::nullopt;
}

/// Whether the version has the traffic after all, because the one before it has ended.
bool goes_on(EngineLoop& engine_loop, const RunId& version) {
  bool goes_on = false;
  engine_loop.inspect([&](const core::State& state, InputResolver&) {
    auto run = state.runs.find(version);
    goes_on = run != state.runs.end() && !core::is_final(run->second.status) &&
              !run->second.ending && run->second.rollover.phase != core::RolloverPhase::reverting;
  });
  return goes_on;
}

}  // namespace

// A writer may die between the commit and its reply: a client that repeats its request must not
// return to an even earlier version.
std::optional<RunId> LocalEngine::ended_canary(const std::string& name, const Submission& from) {
  const std::string& request = from.options.request;
  if (request.empty()) return std::nullopt;
  auto run = value_or_throw(engine_loop_->parts().store.get(Family::kv, request_key(request)));
  if (!run) return std::nullopt;
  auto record = select_record(engine_loop_->parts().store, *run);
  if (!record.ok()) return std::nullopt;  // removed by gc
  const std::string reason = describe_run(*run, false).rollover.reason;
  bool was_ended = reason.find(reason_of(name)) != std::string::npos;
  return was_ended ? std::optional<RunId>(*run) : std::nullopt;
}

std::optional<RunId> LocalEngine::end_canary(const std::string& name, const Submission& from) {
  if (auto before = ended_canary(name, from)) return before;
  std::string by = from.by.empty() ? "" : ", which " + from.by + " asked for,";
  MetadataRows rows;
  while (true) {
    std::optional<Canary> canary;
    engine_loop_->inspect(
        [&](const core::State& state, InputResolver&) { canary = canary_under_way(state, name); });
    if (!canary) return std::nullopt;
    if (canary->is_reverting) return canary->run;  // a second rollback is the same one
    core::TrafficMeasured event{canary->run, canary->step};
    event.error = fmt::format("{}{} ended it", reason_of(name), by);
    if (!from.options.request.empty()) rows = {{request_key(from.options.request), canary->run}};
    // Otherwise it has gone on to another step, or has ended.
    if (value_or_throw(engine_loop_->post_and_wait(std::move(event), {}, rows))) return canary->run;
  }
}

std::shared_ptr<detail::RunHandle> LocalEngine::version_kept(const std::string& name,
                                                             const RunId& rejected) {
  auto rest = engine_loop_->watch_rest(rejected);
  while (!rest->is_open_within(kLookEvery) && !goes_on(*engine_loop_, rejected)) {
  }
  if (auto error = engine_loop_->stopped_by()) throw Failed(*error);
  auto serving = value_or_throw(serving_version(engine_loop_->parts().store, name));
  if (!serving || goes_on(*engine_loop_, rejected))
    throw Failed(environment_error(
        fmt::format("the version before the run {} has ended: it cannot have the traffic of `{}` "
                    "again",
                    rejected, name)));
  auto state = watch(serving->id);
  state->on_end();
  return state;
}

}  // namespace flow
