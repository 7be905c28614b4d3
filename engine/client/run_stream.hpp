// Shared by LocalClientEngine and RemoteEngine: sends one request, and follows a run over its
// connection.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "engine/client/connection.hpp"
#include "engine/client/messages.hpp"
#include "engine/runs/run_handle.hpp"

namespace flow {

/// Adds a random request id unless there is one. After a crash the next writer uses it to find the
/// run that the request has already started.
RunOptions with_request_id(RunOptions options);

/// A resume request without acknowledgments; a caller that sends them sets their fields.
ClientRequest resume_request(const std::string& selector, const Submission& submission,
                             bool new_code);
/// The same for a run of which only the services run. `rolls_back`: `selector` is a name.
ClientRequest serve_request(const std::string& selector, bool rolls_back,
                            const Submission& submission);

/// The runs of the reply to a StopRun. Throws Failed if they cannot be read.
std::vector<RunInfo> stopped_runs(const ServerReply& reply);

/// Sends the request and blocks for the next reply. Error (environment) if the connection is lost;
/// `gone` is its message if it was lost before the request was sent. A server that rejects the
/// request returns an error reply; so does this function if the request is over kClientFrameMax.
Result<ServerReply> exchange(EngineConnection& connection, const ClientRequest& request,
                             const char* gone = "the other side is gone");
/// The same on a new connection to the writer of the state `dir`. Error also if the writer is
/// stalled.
Result<ServerReply> send_to_writer(const std::string& dir, const ClientRequest& request);
/// Says that the writer of the state `dir` exists and does not answer, and what to do.
Error stalled_writer(const std::string& dir);

/// From now on the run's interrupt, cancel and end of serving are requests on `connection`.
void attach_controls(detail::RunHandle& state, const std::shared_ptr<EngineConnection>& connection);
/// While there is no connection: an interrupt calls `on_interrupt`; cancel and end_serving do
/// nothing.
void detach_controls(detail::RunHandle& state, std::function<void()> on_interrupt);

/// Remembers which task completions of a run were delivered, so that completions that were missed
/// while the connection was broken are delivered exactly once. Bounded by the run's tasks. Used by
/// the thread that follows the run.
class DeliveredCompletions {
 public:
  void deliver(detail::RunHandle& state, Event event);
  /// Reads the run, and delivers what completed since the first event and was not delivered.
  void deliver_missed(detail::RunHandle& state);

 private:
  int64_t since_ms_ = 0;                                          // the first event; 0: none yet
  std::unordered_set<std::string> delivered_, delivered_late_{};  // tasks with their attempts
};

/// Delivers the events of the run that `connection` follows, until the run ends: true. False when
/// the connection is lost. `received` counts the replies and is acknowledged to the server; null
/// for a server that expects no acknowledgements.
bool follow_connection(detail::RunHandle& state, EngineConnection& connection,
                       DeliveredCompletions& completions, uint64_t* received);

}  // namespace flow
