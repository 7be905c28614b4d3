// A run that the writer carries out for a client: its events go to the client as they come. The
// client may lose its connection and come back by another, for a while; then it hears what it has
// not heard, and where it does not come back its run is interrupted.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/client/connection.hpp"
#include "engine/runs/run_handle.hpp"

namespace flow {

/// What a client that tells what it has heard may have yet to hear of.
constexpr size_t kUnackedMax = 1'024;

class ClientRunSession {
 public:
  /// `acks`: the client acknowledges the events that it received, and may reconnect. `run_count` is
  /// released when the run has ended.
  ClientRunSession(std::shared_ptr<detail::RunHandle> run, bool acks,
                   std::shared_ptr<void> run_count);
  ~ClientRunSession();  // after its end
  const std::string& run() const { return run_->id; }

  /// Over this link from now on, behind the `acked` events that the client has. Serves it until it
  /// is gone: a client hangs up when it has read what the run came to. True where nobody waits for
  /// the run any more; false where another link has taken the place of this one.
  bool serve(const std::shared_ptr<EngineConnection>& connection, uint64_t acked);
  /// Whether nobody waits for the client any more.
  bool is_abandoned() const;
  /// Whether the client has been sent the end of the run.
  bool is_over() const;
  void wait_over();
  /// The writer ends. `leads`: what runs goes on elsewhere, and the client finds the next writer.
  void quit(bool leads);

 private:
  using Lock = std::unique_lock<std::mutex>;
  void send_events();
  void send(Value frame);
  bool send_next(Lock& lock);
  void on_request(const Value& frame);
  void on_disconnected(Lock& lock, int64_t reconnect_window_ms);

  const std::shared_ptr<detail::RunHandle> run_;
  const bool acks_;
  std::shared_ptr<void> run_count_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<EngineConnection> connection_;  // null: it is gone
  std::deque<Value> unacked_;                     // that it may not have heard, up to kUnackedMax
  uint64_t first_ = 0, sent_ = 0;  // numbers of frames: the first of unacked_, the next to be sent
  bool is_abandoned_ = false, is_over_ = false, quits_ = false, leads_ = false;
  std::thread thread_;
};

}  // namespace flow
