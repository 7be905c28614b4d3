// A run that the writer executes for a client: the server's end of the stream of its events.
//
// If the client's connection breaks, the client has a while to connect again: it then gets the
// replies that it has not acknowledged. If it does not connect again, its run is interrupted, or,
// if it was submitted as detached or only serves, continues to its end without a client.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/client/connection.hpp"
#include "engine/client/messages.hpp"
#include "engine/runs/run_handle.hpp"

namespace flow {

/// Maximum number of replies that were sent to an acknowledging client and are not acknowledged
/// yet.
constexpr size_t kUnackedMax = 1'024;

/// Has a thread that sends; the threads of the connections receive, each in serve(). Thread-safe.
/// Owned by the server and by the connections that serve it.
class ClientRunSession {
 public:
  /// `acks`: the client acknowledges the replies that it received, and may connect again.
  /// `is_detached`: the run continues without its client. `run_count` is released when the run has
  /// ended and the client has the end. `by`: the client, recorded as the requester of a
  /// stop or cancel.
  ClientRunSession(std::shared_ptr<detail::RunHandle> run, bool acks, bool is_detached,
                   std::string by, std::shared_ptr<void> run_count);
  ~ClientRunSession();  // joins its thread: only after the end
  const std::string& run() const { return run_->id; }

  /// Sends to `connection` from now on, behind the first `acked` replies, and executes its requests
  /// until it is gone; a client hangs up when it has read the end of the run. True if no client
  /// waits for the run any more; false if another connection has replaced this one.
  bool serve(const std::shared_ptr<EngineConnection>& connection, uint64_t acked);
  /// Whether the client did not connect again in time: its run is being interrupted, unless
  /// is_detached().
  bool is_abandoned() const;
  /// Whether the run continues without its client: as it was submitted, or because it only served
  /// when the client died. Waits while that is being decided.
  bool is_detached();
  /// Whether the run has ended and the client has the end, or will not get it.
  bool is_over() const;
  void wait_over();
  /// The writer ends: hangs up. `leads`: it is a head, whose workers continue the run; the client
  /// finds the next head.
  void quit(bool leads);

 private:
  using Lock = std::unique_lock<std::mutex>;
  void send_events();
  void send(ServerReply reply);
  bool send_next(Lock& lock);
  void on_request(const ClientRequest& request);
  void on_disconnected(Lock& lock, int64_t reconnect_window_ms);
  void leave_to_next_writer();

  const std::shared_ptr<detail::RunHandle> run_;
  const bool acks_;
  const std::string by_;
  std::shared_ptr<void> run_count_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<EngineConnection> connection_;  // null: it is gone
  // Replies that the client may not have received, at most kUnackedMax.
  std::deque<ServerReply> unacked_;
  uint64_t first_ = 0, sent_ = 0;  // numbers of replies: the first of unacked_, the next to be sent
  bool is_detached_, is_deciding_ = false;
  bool is_abandoned_ = false, is_over_ = false, quits_ = false, leads_ = false;
  std::thread thread_;
};

}  // namespace flow
