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
constexpr size_t kUnheardMax = 1'024;

class Carried {
 public:
  /// `tells`: the client tells what it has heard, and may come back. `counted` is let go of when
  /// the run has come to its end.
  Carried(std::shared_ptr<detail::RunState> run, bool tells, std::shared_ptr<void> counted);
  ~Carried();  // after its end
  const std::string& run() const { return run_->id; }

  /// Over this link from now on, behind the `heard` events that the client has. Serves it until it
  /// is gone: a client hangs up when it has read what the run came to. True where nobody waits for
  /// the run any more; false where another link has taken the place of this one.
  bool serve(const std::shared_ptr<FrameLink>& link, uint64_t heard);
  /// Whether nobody waits for the client any more.
  bool is_left() const;
  /// Whether the client has been sent the end of the run.
  bool is_over() const;
  void wait_over();
  /// The writer ends. `leads`: what runs goes on elsewhere, and the client finds the next writer.
  void quit(bool leads);

 private:
  using Lock = std::unique_lock<std::mutex>;
  void tell();
  void say(Value frame);
  bool say_next(Lock& lock);
  void hear(const Value& frame);
  void on_gone(Lock& lock, int64_t may_return_ms);

  const std::shared_ptr<detail::RunState> run_;
  const bool tells_;
  std::shared_ptr<void> counted_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<FrameLink> link_;  // null: it is gone
  std::deque<Value> said_;           // that it may not have heard, up to kUnheardMax
  uint64_t first_ = 0, sent_ = 0;    // numbers of frames: the first of said_, the next to be sent
  bool is_left_ = false, is_over_ = false, quits_ = false, leads_ = false;
  std::thread thread_;
};

}  // namespace flow
