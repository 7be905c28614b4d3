// One thread tells; that of each connection hears.
#include "engine/client/run_session.hpp"

#include <algorithm>
#include <chrono>

#include "engine/base/engine_thread.hpp"
#include "engine/client/messages.hpp"

namespace flow {

Carried::Carried(std::shared_ptr<detail::RunState> run, bool tells, std::shared_ptr<void> counted)
    : run_(std::move(run)),
      tells_(tells),
      counted_(std::move(counted)),
      thread_(engine_thread([this] { tell(); })) {}

Carried::~Carried() { thread_.join(); }

void Carried::tell() {
  while (auto event = run_->next()) say(event_to_value(*event));
  Value end = Value::map({{"frame", "end"}});
  bool has_end = true;
  try {
    run_->wait_end();
    std::lock_guard lock(mutex_);
    has_end = !quits_;  // it asks the next writer
  } catch (const Failed& failure) {
    end = error_to_value(failure.error);
  }
  if (has_end) say(std::move(end));
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return !tells_ || said_.empty() || is_left_ || quits_; });
  is_over_ = true;
  changed_.notify_all();
  lock.unlock();
  counted_.reset();
}

// Of what nobody hears nothing is kept: the run goes on to its end.
void Carried::say(Value frame) {
  Lock lock(mutex_);
  said_.push_back(std::move(frame));
  while (!is_left_ && !quits_ && sent_ < first_ + said_.size()) {
    if (!link_ || sent_ - first_ >= kUnheardMax) {
      changed_.wait(lock);
    } else if (!say_next(lock)) {
      changed_.wait(lock);  // whoever reads from the link sees its end too
    }
  }
  if (is_left_ || quits_) said_.clear();
}

/// False where the link is gone.
bool Carried::say_next(Lock& lock) {
  auto link = link_;
  Value frame = said_[sent_ - first_];
  lock.unlock();
  bool is_sent = link->send(frame);
  lock.lock();
  if (link != link_ || is_left_ || quits_) return true;  // another took its place, or nobody
  if (!is_sent) {
    link->shut_down();
    link_.reset();
    return false;
  }
  sent_++;
  if (tells_) return true;
  said_.pop_front();
  first_++;
  return true;
}

void Carried::hear(const Value& frame) {
  std::string asked = text_field(frame, "verb");
  if (asked == "interrupt") run_->interrupt(flag_field(frame, "kill"));
  if (asked == "cancel") run_->cancel();
  if (asked == "end_serving") run_->end_serving();
  if (asked != "heard") return;
  auto heard = static_cast<uint64_t>(integer_field(frame, "count"));
  std::lock_guard lock(mutex_);
  for (; first_ < std::min(heard, sent_); first_++) said_.pop_front();
  changed_.notify_all();
}

bool Carried::serve(const std::shared_ptr<FrameLink>& link, uint64_t heard) {
  {
    Lock lock(mutex_);
    if (is_over_ || is_left_) {  // it asks once more
      link->shut_down();
      return false;
    }
    if (link_) link_->shut_down();
    if (quits_) link->shut_down();
    link_ = link;
    for (; first_ < std::min(heard, first_ + said_.size()); first_++) said_.pop_front();
    sent_ = first_;
    changed_.notify_all();
  }
  while (true) {
    auto frame = link->receive();
    if (!frame.ok()) break;
    hear(*frame);
  }
  Lock lock(mutex_);
  if (link_ && link_ != link) return false;
  link_.reset();
  on_gone(lock, link->may_return_ms());
  return !link_;
}

// A client's death interrupts its run; nothing where it has ended. What workers run goes on when
// their head ends, and the client finds the next one.
void Carried::on_gone(Lock& lock, int64_t may_return_ms) {
  changed_.wait_for(lock, std::chrono::milliseconds(may_return_ms),
                    [this] { return link_ || is_over_ || quits_; });
  if (link_ || is_over_) return;
  is_left_ = true;
  changed_.notify_all();
  bool goes_on = quits_ && leads_;
  lock.unlock();
  if (goes_on)
    run_->on_end();
  else
    run_->interrupt(false);
  lock.lock();
}

bool Carried::is_left() const {
  std::lock_guard lock(mutex_);
  return is_left_;
}

bool Carried::is_over() const {
  std::lock_guard lock(mutex_);
  return is_over_;
}

void Carried::wait_over() {
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return is_over_; });
}

void Carried::quit(bool leads) {
  Lock lock(mutex_);
  quits_ = true;
  leads_ = leads;
  if (link_) link_->shut_down();
  changed_.notify_all();
}

}  // namespace flow
