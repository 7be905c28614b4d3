// Resolves the core's queries: each is answered by an event within the same turn, except for those
// that call functions of the script.
#pragma once
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "engine/core/core.hpp"
#include "engine/runs/input_resolver.hpp"
#include "engine/runtime/cache_lookup.hpp"
#include "engine/runtime/recorder.hpp"
#include "engine/runtime/run_event_feed.hpp"
#include "engine/runtime/stop_cause.hpp"
#include "engine/runtime/turn_blobs.hpp"

namespace flow {

bool is_query(const core::Command& command);

/// The canonical bytes of a map's list, a branch's value, a dynamic task's value, or with `unit`
/// kNoNode the run's result.
Result<std::string> gather_value(InputResolver& resolver, const TurnBlobs& blobs,
                                 const core::Run& run, core::UnitId unit);

/// Used by the turn's thread.
class QueryHandler {
 public:
  /// Calls of the script's functions in another process; later turns answer the queries.
  struct FunctionRequests {
    using Request = std::function<void(const core::RunId&, core::UnitId)>;
    Request tags;       // of a map's items: answers ExpandMap
    Request resources;  // answers ComputeResources
  };
  QueryHandler(const core::State& state, Recorder& recorder, TurnBlobs& blobs,
               const CacheLookup& cache, InputResolver& resolver, RunEventFeed& feed,
               StopCause& stop, FunctionRequests requests = {})
      : state_(state),
        recorder_(recorder),
        blobs_(blobs),
        cache_(cache),
        resolver_(resolver),
        feed_(feed),
        stop_(stop),
        requests_(std::move(requests)) {}

  void push(core::Command query) { queries_.push_back(std::move(query)); }
  bool empty() const { return queries_.empty(); }
  /// Resolves the first query, or many units at once if they look up cache keys; returns how many.
  size_t resolve_some(core::Time now);

 private:
  size_t resolve_inputs(core::Time now);
  void answer(CacheRequest& request, core::Time now);
  void resolve(const core::Command& query, core::Time now);
  void call_gate(const core::CallGate& query, const core::Run& run, core::Time now);
  void read_gate(const core::ReadGate& query, const core::Run& run, core::Time now);
  void gather(const core::GatherValue& query, const core::Run& run, core::Time now);
  void fail_unit(const core::RunId& run, core::UnitId unit, const Error& error, core::Time now);

  const core::State& state_;
  Recorder& recorder_;
  TurnBlobs& blobs_;
  const CacheLookup& cache_;
  InputResolver& resolver_;
  RunEventFeed& feed_;
  StopCause& stop_;
  FunctionRequests requests_;
  std::deque<core::Command> queries_;  // of events that turns have applied
};

}  // namespace flow
