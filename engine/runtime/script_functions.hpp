// Calls functions of the script that a run needs after its graph was built: those that tag the
// items of a map, and those that compute resource options. They run in build processes, because the
// engine loads no user code. The answers enter the journal, so that a replay or a resume does not
// call a function again.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "engine/runs/input_resolver.hpp"
#include "engine/runtime/active_runs.hpp"
#include "engine/runtime/inbox.hpp"
#include "engine/runtime/recorder.hpp"
#include "engine/worker/build_queue.hpp"

namespace flow {

/// Used by the turn's thread.
class ScriptFunctions {
 public:
  ScriptFunctions(const core::State& state, Builder& builder, Inbox& inbox, Recorder& recorder,
                  InputResolver& resolver, ActiveRuns& active_runs)
      : state_(state),
        inbox_(inbox),
        recorder_(recorder),
        resolver_(resolver),
        active_runs_(active_runs),
        queue_(builder) {}

  /// A later turn answers the query ExpandMap of this unit, whose list is known.
  void request_tags(const core::RunId& run, core::UnitId unit);
  /// This turn or a later one answers the query ComputeResources of this unit.
  void request_resources(const core::RunId& run, core::UnitId unit);

 private:
  /// Identifies the task, what its functions see of the arguments, and the attempt's number: equal
  /// calls have equal resources, and are evaluated once per run.
  using CallId = Digest;
  struct Call {
    CallId id;
    BuildOrder::ResourceCall call;
  };
  struct RunCalls {
    uint64_t context = 0;  // number of the run's context, whose code gives the answers
    std::map<CallId, BuildReply::CallResources> answers;
    std::vector<core::UnitId> waiting;  // for the next build
    bool is_flush_posted = false, is_building = false;
  };

  Result<BuildOrder> order_of(const core::RunId& run);
  void answer_tags(const core::RunId& run, core::UnitId unit, const Digest& list,
                   const Result<std::vector<std::string>>& tags);
  void fail_tags(const core::RunId& run, core::UnitId unit, const std::string& why);

  Result<Call> call_of(const core::Run& run, core::UnitId unit);
  bool answer_resources(const core::Run& run, core::UnitId unit, const CallId& id,
                        const std::map<CallId, BuildReply::CallResources>& answers);
  void post_flush(const core::RunId& run, RunCalls& calls);
  void flush(const core::RunId& run);
  void finish(const core::RunId& run, const std::vector<core::UnitId>& units,
              const std::vector<CallId>& ids, const Result<BuildReply>& reply);
  void fail_resources(const core::RunId& run, core::UnitId unit, const Error& why);
  bool is_waiting(const core::RunId& run, core::UnitId unit) const;  // for its resources
  /// The calls of the run. Forgets runs that are not active any more, and answers of other code
  /// than the run has now.
  RunCalls& calls_of(const core::RunId& run);
  void post(std::function<void()> in_a_turn);

  const core::State& state_;
  Inbox& inbox_;
  Recorder& recorder_;
  InputResolver& resolver_;
  ActiveRuns& active_runs_;
  std::map<core::RunId, RunCalls> calls_;
  BuildQueue queue_;  // the last one: its thread posts to the inbox
};

}  // namespace flow
