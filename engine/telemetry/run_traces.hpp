// Makes the spans of runs: one trace per run, whose root is the run; a span per attempt below it,
// and below that its time in the queue, staging, the task itself and the commit. All ids are
// derived from the run's id, so that an engine that resumes a run needs to remember nothing.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/telemetry/span.hpp"

namespace flow {

/// Used by the turn's thread.
class RunTraces {
 public:
  /// The TRACEPARENT of the process that submitted or resumed the run, as it was given; "" if there
  /// is none.
  using ParentOf = std::function<std::string(const core::RunId&)>;
  explicit RunTraces(ParentOf parent_of) : parent_of_(std::move(parent_of)) {}

  /// After the record was applied: appends the spans of what it ended. `commands`: those that it
  /// made.
  void add(const core::State& state, const core::Record& record,
           std::span<const core::Command> commands, std::vector<Span>& out);
  /// The `traceparent` of what the attempt starts. It says whether the trace is sampled.
  std::string traceparent(const core::State& state, const core::AttemptId& id);

 private:
  /// The trace of a run, from its submission or resumption to its end.
  struct Trace {
    std::string id, parent_id, root_id;  // as in Span
    uint32_t flags = 1;
    core::Time began = 0;
    bool is_sampled() const { return (flags & 1) != 0; }
  };
  Trace& trace_of(const core::State& state, const core::RunId& run);
  void add_attempt(const core::State& state, const core::AttemptId& id, core::Time at,
                   std::string_view outcome, const core::Failure* failure, std::vector<Span>& out);
  void add_losses(const core::State& state, core::Time at, std::span<const core::Command> commands,
                  std::vector<Span>& out);
  void add_run_ends(const core::State& state, core::Time at,
                    std::span<const core::Command> commands, std::vector<Span>& out);

  const ParentOf parent_of_;
  std::map<core::RunId, core::Time> began_;  // runs that have no trace yet
  std::map<core::RunId, Trace> traces_;      // both leave at the run's end or interruption
};

}  // namespace flow
