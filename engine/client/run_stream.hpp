// What every client of a writer does, however it reaches it: requests, and a run that is followed.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/client/connection.hpp"
#include "engine/runs/run_handle.hpp"

namespace flow {

Value request_of(const char* verb, std::vector<std::pair<Value, Value>> fields);
/// The request has a name, so that whoever answers it in the end knows whether another already did.
RunOptions with_request_id(RunOptions options);
/// What the run's watchers may do goes over `connection`.
void attach_controls(detail::RunHandle& state, const std::shared_ptr<EngineConnection>& connection);
/// Nobody is there to be told: an interrupt calls `on_interrupt`.
void detach_controls(detail::RunHandle& state, std::function<void()> on_interrupt);
void warn(detail::RunHandle& state, std::string text);
/// The one answer of the writer of the state `dir`.
Result<Value> ask_writer(const std::string& dir, const Value& request);
/// What to do about the writer of the state `dir`, which is there and does not answer.
Error stalled_writer(const std::string& dir);

/// Of one run, whose tasks bound it. The ends of tasks that a client was told of: those that it
/// missed while its writer was gone are told late, and none twice.
class DeliveredCompletions {
 public:
  void deliver(detail::RunHandle& state, Event event);
  /// What ended since the first event, and was not told.
  void deliver_missed(detail::RunHandle& state);

 private:
  int64_t since_ms_ = 0;                                          // of the first event
  std::unordered_set<std::string> delivered_, delivered_late_{};  // tasks with their attempts
};

/// Until the run's end, or that of the writer: false. `received` counts the events for the
/// acknowledgements to the writer; null for a writer that takes none.
bool follow_connection(detail::RunHandle& state, EngineConnection& connection,
                       DeliveredCompletions& completions, uint64_t* received);

}  // namespace flow
