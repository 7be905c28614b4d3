// Cancels, stops and signals runs.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "engine/api/local_engine.hpp"
#include "engine/query/reader_impl.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/runs/served_versions.hpp"

namespace flow {

void LocalEngine::cancel_for(const std::string& selector, const std::string& by) {
  RunRecord record = value_or_throw(select_serving(engine_loop_->parts().store, selector));
  bool admitted = value_or_throw(engine_loop_->post_and_wait(core::CancelRequested{record.id, by}));
  if (!admitted && record.status != "cancelled")  // a repeated request succeeds
    throw Failed(user_error(fmt::format("the run {} can't be cancelled: it {}", record.id,
                                        status_clause(record.status))));
}

std::vector<RunId> LocalEngine::active_runs(const std::string& selector) {
  RunRecord record = value_or_throw(select_record(engine_loop_->parts().store, selector));
  bool is_name = record.name == selector && record.id != selector;
  std::vector<RunId> active;
  engine_loop_->inspect([&](const core::State& state, InputResolver&) {
    for (auto run = state.runs.rbegin(); run != state.runs.rend(); ++run) {
      bool is_meant = is_name ? run->second.name == selector : run->first == record.id;
      if (is_meant && !engine_loop_->parts().active_runs.is_at_rest(run->first))
        active.push_back(run->first);
    }
  });
  if (!active.empty()) return active;
  std::string why = is_over(record.status)
                        ? "it " + status_clause(record.status)
                        : fmt::format(
                              "it is interrupted. `flow resume {}` continues it, and `flow "
                              "cancel {}` ends it for good",
                              record.id, record.id);
  throw Failed(user_error(fmt::format("the run {} can't be stopped: {}", record.id, why)));
}

std::vector<RunInfo> LocalEngine::stop_for(const std::string& selector, int64_t within_ms,
                                           const std::string& by) {
  std::vector<RunId> runs = active_runs(selector);
  std::vector<std::shared_ptr<Latch>> rests;
  for (const RunId& run : runs) {
    engine_loop_->interrupt(run, false, by);
    rests.push_back(engine_loop_->watch_rest(run));
  }
  auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(within_ms);
  for (size_t i = 0; within_ms >= 0 && i < runs.size(); i++) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (!rests[i]->is_open_within(std::max(left, std::chrono::milliseconds(0))))
      engine_loop_->interrupt(runs[i], true, by);
  }
  for (const auto& rest : rests) {
    bool is_at_rest = rest->wait();
    if (auto error = engine_loop_->stopped_by()) throw Failed(*error);
    if (!is_at_rest)
      throw Failed(environment_error("the process that writes the state ended before the run did"));
  }
  std::vector<RunInfo> stopped;
  for (const RunId& run : runs) stopped.push_back(describe_run(run, false));
  return stopped;
}

void LocalEngine::signal_for(const std::string& selector, const std::string& name,
                             const std::string& json, const std::string& by) {
  RunRecord record = value_or_throw(select_record(engine_loop_->parts().store, selector));
  Value value(true);
  if (!json.empty()) {
    auto parsed = from_json(json);
    if (!parsed.ok())
      throw Failed(
          user_error(fmt::format("the signal's value is not JSON: {}", parsed.error().message)));
    value = std::move(*parsed);
  }
  std::string bytes = encode_value(value);
  Digest digest = sha256(bytes);
  bool admitted = value_or_throw(engine_loop_->post_and_wait(
      core::SignalReceived{record.id, name, digest, by}, {{digest, bytes}}));
  if (admitted) return;
  // The first signal of a name answers all its waits. A second one changes nothing.
  bool is_active = false;
  engine_loop_->inspect([&](const core::State& state, InputResolver&) {
    auto run = state.runs.find(record.id);
    is_active = run != state.runs.end() && !core::is_final(run->second.status);
  });
  if (is_active) return;
  // A client that lost the reply and repeats its request succeeds.
  LoadedRun ended = value_or_throw(
      load_run(engine_loop_->parts().store, engine_loop_->parts().blobs,
               value_or_throw(select_record(engine_loop_->parts().store, record.id))));
  if (ended.run != nullptr) {
    auto sent = ended.run->signals.find(name);
    if (sent != ended.run->signals.end() && sent->second == digest) return;
  }
  throw Failed(user_error(fmt::format("the run {} takes no signals any more: it {}", record.id,
                                      status_clause(ended.record.status))));
}

}  // namespace flow
