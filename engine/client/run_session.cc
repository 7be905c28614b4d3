#include "engine/client/run_session.hpp"

#include <algorithm>
#include <chrono>

#include "engine/base/engine_thread.hpp"

namespace flow {

ClientRunSession::ClientRunSession(std::shared_ptr<detail::RunHandle> run, bool acks,
                                   bool is_detached, std::string by,
                                   std::shared_ptr<void> run_count)
    : run_(std::move(run)),
      acks_(acks),
      by_(std::move(by)),
      run_count_(std::move(run_count)),
      is_detached_(is_detached),
      thread_(engine_thread([this] { send_events(); })) {}

ClientRunSession::~ClientRunSession() { thread_.join(); }

void ClientRunSession::send_events() {
  while (auto event = run_->next()) send(event_reply(*event));
  ServerReply end;
  end.mutable_run_ended();
  bool has_end = true;
  try {
    run_->wait_end();
    std::lock_guard lock(mutex_);
    has_end = !quits_;  // else the client asks the next writer
  } catch (const Failed& failure) {
    end = error_reply(failure.error);
  }
  if (has_end) send(std::move(end));
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return !acks_ || unacked_.empty() || is_abandoned_ || quits_; });
  is_over_ = true;
  changed_.notify_all();
  lock.unlock();
  run_count_.reset();
}

// Waits while there is no connection or too much is not acknowledged. If the client is abandoned,
// its replies are dropped and the run continues to its end.
void ClientRunSession::send(ServerReply reply) {
  Lock lock(mutex_);
  unacked_.push_back(std::move(reply));
  while (!is_abandoned_ && !quits_ && sent_ < first_ + unacked_.size()) {
    if (!connection_ || sent_ - first_ >= kUnackedMax) {
      changed_.wait(lock);
    } else if (!send_next(lock)) {
      changed_.wait(lock);  // the thread that receives sees the end of the connection too
    }
  }
  if (is_abandoned_ || quits_) unacked_.clear();
}

/// Sends one reply, without the lock. False if the connection is gone.
bool ClientRunSession::send_next(Lock& lock) {
  auto connection = connection_;
  ServerReply reply = unacked_[sent_ - first_];
  lock.unlock();
  bool is_sent = connection->send(reply);
  lock.lock();
  if (connection != connection_ || is_abandoned_ || quits_)
    return true;  // replaced meanwhile, by another one or by none
  if (!is_sent) {
    connection->shut_down();
    connection_.reset();
    return false;
  }
  sent_++;
  if (acks_) return true;
  unacked_.pop_front();
  first_++;
  return true;
}

void ClientRunSession::on_request(const ClientRequest& request) {
  if (request.has_interrupt_run()) run_->interrupt(request.interrupt_run().kill(), by_);
  if (request.has_cancel_followed_run()) run_->cancel(by_);
  if (request.has_end_serving()) run_->end_serving(by_);
  if (!request.has_ack_replies()) return;
  uint64_t acked = request.ack_replies().count();
  std::lock_guard lock(mutex_);
  for (; first_ < std::min(acked, sent_); first_++) unacked_.pop_front();
  changed_.notify_all();
}

bool ClientRunSession::serve(const std::shared_ptr<EngineConnection>& connection, uint64_t acked) {
  {
    Lock lock(mutex_);
    if (is_over_ || is_abandoned_) {  // the client repeats its request
      connection->shut_down();
      return false;
    }
    if (connection_) connection_->shut_down();
    if (quits_) connection->shut_down();
    connection_ = connection;
    for (; first_ < std::min(acked, first_ + unacked_.size()); first_++) unacked_.pop_front();
    sent_ = first_;
    changed_.notify_all();
  }
  while (true) {
    auto request = connection->receive<ClientRequest>();
    if (!request.ok()) break;
    on_request(*request);
  }
  Lock lock(mutex_);
  if (connection_ && connection_ != connection) return false;
  connection_.reset();
  on_disconnected(lock, connection->reconnect_window_ms());
  return !connection_;
}

// The death of a client interrupts its run, unless that has ended, is detached or only serves. When
// a head ends, its workers continue what they run, and the client finds the next head.
void ClientRunSession::on_disconnected(Lock& lock, int64_t reconnect_window_ms) {
  changed_.wait_for(lock, std::chrono::milliseconds(reconnect_window_ms),
                    [this] { return connection_ || is_over_ || quits_; });
  if (connection_ || is_over_) return;
  is_abandoned_ = true;
  changed_.notify_all();
  if (!quits_ && is_detached_) return;
  if (!quits_) {
    is_deciding_ = true;
    lock.unlock();
    bool goes_on = run_->outlive_client();
    lock.lock();
    is_detached_ = goes_on;
    is_deciding_ = false;
    changed_.notify_all();
    if (!goes_on || !quits_) return;
  }
  lock.unlock();
  leave_to_next_writer();
  lock.lock();
}

// The next writer resumes a detached run. The client of a run that only serves resumes it.
void ClientRunSession::leave_to_next_writer() {
  if (leads_ || is_detached_ || run_->outlive_client()) run_->on_end();
}

bool ClientRunSession::is_abandoned() const {
  std::lock_guard lock(mutex_);
  return is_abandoned_;
}

bool ClientRunSession::is_detached() {
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return !is_deciding_; });
  return is_detached_;
}

bool ClientRunSession::is_over() const {
  std::lock_guard lock(mutex_);
  return is_over_;
}

void ClientRunSession::wait_over() {
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return is_over_; });
}

void ClientRunSession::quit(bool leads) {
  Lock lock(mutex_);
  quits_ = true;
  leads_ = leads;
  if (connection_) connection_->shut_down();
  changed_.notify_all();
  bool runs_alone = is_abandoned_ && is_detached_ && !is_over_;
  lock.unlock();
  if (runs_alone) leave_to_next_writer();
}

}  // namespace flow
