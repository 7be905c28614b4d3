// The events of runs for their listeners: collected in turns, delivered after the commit.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/runtime/active_runs.hpp"
#include "engine/runtime/state_clock.hpp"
#include "engine/runtime/turn_input.hpp"
#include "engine/worker/worker.hpp"

namespace flow {

/// Used by the turn's thread.
class RunEventFeed {
 public:
  /// `open` takes the events of the open batch.
  RunEventFeed(const core::State& state, const StateClock& clock, ActiveRuns& active_runs,
               std::vector<Event>& open)
      : state_(state), clock_(clock), active_runs_(active_runs), open_(open) {}

  // They describe the state as it is now.
  void notify_unit(const core::RunId& run, core::UnitId unit);
  /// So many units of this run are about to be notified.
  void expect_units(const core::RunId& run, size_t count);
  void notify_run(const core::RunId& run);
  void warn(const core::RunId& run, std::string text);
  /// How much of its budget the run has used.
  void warn_of_budget(const core::RunId& run);
  /// Warns if the ranks of a gang get fewer CPUs than they ask for.
  void warn_of_small_share(const core::Assigned& assigned);
  void publish_progress(const Report& report);
  void publish_metric(const AttemptMetric& metric);
  /// What a task wrote, if the run's listener asked for it. Keeps its last line for the event of a
  /// failure.
  void publish_log(const AttemptLog& log);

  /// After the commit. One call per listener, because each call wakes a thread.
  void deliver(std::vector<Event> events);

 private:
  /// Nothing if the run has no listener.
  std::optional<Event> event_of_attempt(const char* type, const core::AttemptId& id);
  void notify_replicas_ready(const core::Run& run, core::UnitId set);
  void keep_last_line(const AttemptLog& log);
  void add_failure(const core::Run& run, core::UnitId unit, Event& event);

  const core::State& state_;
  const StateClock& clock_;
  ActiveRuns& active_runs_;
  std::vector<Event>& open_;
  // Of the newest attempts of units that run; they leave when the unit stops running.
  std::map<std::pair<core::RunId, core::UnitId>, std::string> last_lines_;
};

}  // namespace flow
