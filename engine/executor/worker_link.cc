// The executor's side of its connection to the worker.
#include "engine/executor/worker_link.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/spin_wait.hpp"
#include "engine/executor/processes.hpp"

namespace flow {

namespace {

constexpr size_t kBufferMax = 64 * 1024;
constexpr size_t kChunk = 256 * 1024;
constexpr auto kTick = std::chrono::milliseconds(1);
constexpr int kIdleTicksMax = 50;      // then the background thread sleeps until an attempt begins
constexpr int64_t kCommitUsMax = 500;  // how long to spin for a commit before the thread sleeps
constexpr useconds_t kReceivedPollUs = 50;
// Maximum number of concurrent orders of a chain, where one waits for another.
constexpr uint64_t kChainMax = 2;

/// Another thread ends this process.
[[noreturn]] void wait_for_exit() {
  while (true) ::pause();
}

}  // namespace

bool same_attempt(const wire::AttemptName& a, const wire::AttemptName& b) {
  return a.unit() == b.unit() && a.attempt() == b.attempt() && a.epoch() == b.epoch() &&
         a.run() == b.run();
}

// The background thread lives as long as the process.
WorkerLink::WorkerLink() : chunk_(kChunk, '\0'), background_([this] { run_background(); }) {
  background_.detach();
}

void WorkerLink::end() {
  // The worker is gone: the processes of this attempt are killed, and its result is dropped.
  ended_ = true;
  if (int group = group_.load(); group > 0) ::kill(-group, SIGKILL);
  kill_children();
  ::_exit(0);
}

// ---- reading

bool WorkerLink::read_once(std::unique_lock<std::mutex>& lock, ReadingThread reader, bool block) {
  FLOW_CHECK(reader_ == ReadingThread::none || reader_ == reader);
  ReadingThread before = std::exchange(reader_, reader);
  lock.unlock();
  ssize_t got = ::recv(kWireDescriptor, chunk_.data(), chunk_.size(), block ? 0 : MSG_DONTWAIT);
  int failed = got < 0 ? errno : 0;
  std::vector<wire::ToExecutor> messages;
  if (got > 0) {
    cutter_.add({chunk_.data(), static_cast<size_t>(got)});
    std::string_view frame;
    bool broken = false;
    while (cutter_.next(frame, broken)) {
      if (!messages.emplace_back().ParseFromArray(frame.data(), static_cast<int>(frame.size())))
        end();
    }
    if (broken) end();
  }
  bool again = failed == EINTR || failed == EAGAIN;
  bool is_closed = got <= 0 && !again;
  if (is_closed && !outlives_worker()) end();
  lock.lock();
  reader_ = before;
  if (is_closed) {
    is_lost_ = true;
    changed_.notify_all();
    saved_changed_.notify_all();
  }
  for (wire::ToExecutor& message : messages) handle(message);
  return !again;
}

void WorkerLink::wait_message(std::unique_lock<std::mutex>& lock) {
  if (reader_ == ReadingThread::none) {
    read_once(lock, ReadingThread::main, true);
    return;
  }
  is_main_waiting_ = true;
  changed_.wait(lock);
  is_main_waiting_ = false;
}

// During a long attempt a thread must receive stop commands, answers to saves, and the end of the
// worker.
void WorkerLink::run_background() {
  uint64_t seen = 0;
  int idle = 0;
  while (true) {
    flush();
    {
      std::unique_lock lock(mutex_);
      bool is_long = current_number_ != 0 && current_number_ == seen;
      if (is_long && reader_ == ReadingThread::none) read_in_background(lock);
      idle = current_number_ == 0 ? idle + 1 : 0;
      seen = current_number_;
      if (idle > kIdleTicksMax) {
        is_background_asleep_ = true;
        attempt_began_.wait(lock, [this] { return !is_background_asleep_; });
        idle = 0;
      }
    }
    std::this_thread::sleep_for(kTick);
  }
}

void WorkerLink::read_in_background(std::unique_lock<std::mutex>& lock) {
  uint64_t number = current_number_;
  reader_ = ReadingThread::background;
  while (current_number_ == number && !is_main_waiting_) {
    if (is_lost_) {
      reconnect(lock);
      continue;
    }
    lock.unlock();
    pollfd wire{kWireDescriptor, POLLIN, 0};
    ::poll(&wire, 1, static_cast<int>(kTick.count()));
    flush();
    lock.lock();
    read_once(lock, ReadingThread::background, false);
  }
  reader_ = ReadingThread::none;
  changed_.notify_all();
}

void WorkerLink::reconnect(std::unique_lock<std::mutex>& lock) {
  auto connect = on_lost_;
  int64_t grace_ms = lost_grace_ms_;
  lock.unlock();
  int descriptor = connect && !stopping_ ? connect() : -1;
  lock.lock();
  if (descriptor < 0) {
    stopping_ = true;
    if (on_stop_) on_stop_();
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(grace_ms));
    end();  // next() does it when the attempt stops earlier
  }
  std::lock_guard sending(send_mutex_);
  ::dup3(descriptor, kWireDescriptor, O_CLOEXEC);
  ::close(descriptor);
  cutter_ = {};
  out_.clear();
  released_ = 0;  // the other engine numbers its commits from 1
  is_lost_ = false;
}

void WorkerLink::handle(wire::ToExecutor& message) {
  switch (message.kind_case()) {
    case wire::ToExecutor::kLoad:
      bundles_[message.load().digest()] = std::move(*message.mutable_load()->mutable_bundle());
      break;
    case wire::ToExecutor::kEnvironment: {
      std::map<std::string, std::string> variables;
      for (const wire::EnvVar& variable : message.environment().vars())
        variables[variable.name()] = variable.value();
      environments_[message.environment().run()] =
          std::make_shared<const std::map<std::string, std::string>>(std::move(variables));
      break;
    }
    case wire::ToExecutor::kStart:
      handle_start(*message.mutable_start());
      break;
    case wire::ToExecutor::kRelease:
      released_ = std::max(released_, message.release().commit());
      announce_adoption();
      break;
    case wire::ToExecutor::kStop:
      handle_stop(message.stop());
      break;
    case wire::ToExecutor::kSaved:
      if (!same_attempt(message.saved().id(), current_)) break;
      saved_[message.saved().name()] = message.saved().ok();
      saved_changed_.notify_all();
      break;
    case wire::ToExecutor::kPeers:
      if (!same_attempt(message.peers().id(), current_)) break;
      peers_.assign(message.peers().rank_addresses().begin(),
                    message.peers().rank_addresses().end());
      break;
    case wire::ToExecutor::kRequeueQueued: {
      wire::FromExecutor reply;
      for (const QueuedStart& queued : queue_)
        *reply.mutable_requeued()->add_ids() = queued.start.id();
      queue_.clear();
      if (reply.has_requeued()) send(reply, true);
      break;
    }
    default:
      break;
  }
  if (is_main_waiting_) changed_.notify_all();
}

void WorkerLink::handle_start(wire::Start& start) {
  // With new code its unit may have another number.
  bool continues = start.adopts() && outlives_ && !stopping_ && start.id().run() == current_.run();
  if (continues) {
    current_ = start.id();
    adoption_ = std::move(start);
    return announce_adoption();
  }
  burst_++;
  queue_.push_back({std::move(start), ++received_});
}

void WorkerLink::announce_adoption() {
  if (adoption_ && adoption_->commit() <= released_ && on_adopted_) on_adopted_();
}

std::optional<wire::Start> WorkerLink::take_adoption() {
  std::lock_guard lock(mutex_);
  if (!adoption_ || adoption_->commit() > released_) return std::nullopt;
  return std::exchange(adoption_, std::nullopt);
}

void WorkerLink::handle_stop(const wire::Stop& stop) {
  if (same_attempt(stop.id(), current_)) {
    // Set before stopping_: a thread that sees stopping_ then sees both.
    is_drained_ = stop.gentle();
    stop_grace_ms_ = stop.grace_ms();
    stopping_ = true;
    if (on_stop_) on_stop_();
    if (stop.gentle()) return;
    if (stop.kill_after_flush()) return on_kill_after_flush_(stop.id());
    terminated_ = true;
    if (int group = group_.load(); group > 0) ::kill(-group, SIGTERM);
    return;
  }
  for (auto it = queue_.begin(); it != queue_.end(); ++it) {
    if (!same_attempt(it->start.id(), stop.id())) continue;
    wire::FromExecutor reply;
    *reply.mutable_finished()->mutable_id() = it->start.id();
    reply.mutable_finished()->set_outcome(3);
    queue_.erase(it);
    send(reply, true);
    return;
  }
}

// ---- the main thread

wire::Start WorkerLink::next() {
  std::unique_lock lock(mutex_);
  if (is_lost_) end();
  current_ = {};
  current_number_ = 0;
  saved_changed_.notify_all();
  if (queue_.empty()) {
    flush();
    bool is_spinning = is_chain() && monotonic_us() - began_us_ < kSpinUs;
    burst_ = 0;
    if (is_spinning) spin_until(lock, kSpinUs, [this] { return !queue_.empty(); });
    while (queue_.empty()) wait_message(lock);
  }
  wire::Start start = std::move(queue_.front().start);
  current_number_ = queue_.front().number;
  queue_.pop_front();
  current_ = start.id();
  current_commit_ = start.commit();
  began_us_ = monotonic_us();
  stopping_ = terminated_ = is_drained_ = false;
  stop_grace_ms_ = 0;
  saved_.clear();
  peers_.clear();
  if (is_background_asleep_) {
    is_background_asleep_ = false;
    attempt_began_.notify_one();
  }
  return start;
}

void WorkerLink::wait_released() {
  std::unique_lock lock(mutex_);
  auto is_released = [this] { return current_commit_ <= released_; };
  if (is_released()) return;
  flush();
  if (is_chain()) spin_until(lock, kCommitUsMax, is_released);
  while (!is_released()) wait_message(lock);
  began_us_ = monotonic_us();
}

// With many orders spinning is not worth a core: other threads have work meanwhile.
bool WorkerLink::is_chain() const { return burst_ <= kChainMax; }

// A commit, and the turn before it, take about as long as waking a thread: so the waiting thread
// spins, and yields to threads with work.
void WorkerLink::spin_until(std::unique_lock<std::mutex>& lock, int64_t us_max,
                            const std::function<bool()>& is_done) {
  int64_t until_us = monotonic_us() + us_max;
  while (!is_done() && reader_ == ReadingThread::none && monotonic_us() < until_us) {
    if (read_once(lock, ReadingThread::main, false)) continue;
    lock.unlock();
    spin_pause();
    lock.lock();
  }
}

void WorkerLink::send(const wire::FromExecutor& message, bool now) {
  std::lock_guard lock(send_mutex_);
  if (ended_) wait_for_exit();
  if (is_lost_) return;
  append_frame(out_, message);
  if (!now && out_.size() < kBufferMax) return;
  write_out();
}

void WorkerLink::flush() {
  std::lock_guard lock(send_mutex_);
  if (ended_) wait_for_exit();
  if (!out_.empty()) write_out();
}

// The reading thread finds a broken connection too.
void WorkerLink::write_out() {
  if (!write_fully(kWireDescriptor, out_) && !outlives_worker()) end();
  out_.clear();
}

void WorkerLink::wait_until_received() {
  flush();
  int unsent = 0;
  while (::ioctl(kWireDescriptor, SIOCOUTQ, &unsent) == 0 && unsent > 0) ::usleep(kReceivedPollUs);
}

void WorkerLink::set_on_stop(std::function<void()> callback) {
  std::lock_guard lock(mutex_);
  on_stop_ = std::move(callback);
}

void WorkerLink::set_on_lost(std::function<int()> reconnect, int64_t grace_ms) {
  std::lock_guard lock(mutex_);
  outlives_ = static_cast<bool>(reconnect);
  on_lost_ = std::move(reconnect);
  lost_grace_ms_ = grace_ms;
}

void WorkerLink::set_on_adopted(std::function<void()> callback) {
  std::lock_guard lock(mutex_);
  on_adopted_ = std::move(callback);
}

void WorkerLink::set_on_kill_after_flush(std::function<void(const wire::AttemptName&)> callback) {
  std::lock_guard lock(mutex_);
  on_kill_after_flush_ = std::move(callback);
}

bool WorkerLink::has_queued() {
  std::lock_guard lock(mutex_);
  return !queue_.empty();
}

void WorkerLink::forget_saved(const std::string& name) {
  std::lock_guard lock(mutex_);
  saved_.erase(name);
}

bool WorkerLink::wait_saved(const std::string& name) {
  std::unique_lock lock(mutex_);
  while (!saved_.contains(name) && !is_lost_) wait_message(lock);
  auto answer = saved_.find(name);
  bool ok = answer != saved_.end() && answer->second;
  if (answer != saved_.end()) saved_.erase(answer);
  return ok;
}

// The background thread reads the connection meanwhile.
std::optional<std::vector<std::string>> WorkerLink::wait_peers(int64_t limit_ms) {
  flush();
  int64_t until_us = monotonic_us() + limit_ms * 1000;
  std::unique_lock lock(mutex_);
  while (peers_.empty() && !stopping() && monotonic_us() < until_us) {
    lock.unlock();
    std::this_thread::sleep_for(kTick);
    lock.lock();
  }
  if (peers_.empty() || stopping()) return std::nullopt;
  return peers_;
}

bool WorkerLink::wait_saved_in_background(const wire::AttemptName& id, const std::string& name) {
  std::unique_lock lock(mutex_);
  saved_changed_.wait(
      lock, [&] { return saved_.contains(name) || is_lost_ || !same_attempt(id, current_); });
  auto ack = saved_.find(name);
  if (ack == saved_.end() || !same_attempt(id, current_)) return false;
  bool ok = ack->second;
  saved_.erase(ack);
  return ok;
}

std::string WorkerLink::bundle(const std::string& digest) {
  std::lock_guard lock(mutex_);
  auto found = bundles_.find(digest);
  return found == bundles_.end() ? "" : found->second;
}

std::shared_ptr<const std::map<std::string, std::string>> WorkerLink::environment(
    const std::string& run) {
  std::lock_guard lock(mutex_);
  auto& known = environments_[run];
  if (known == nullptr) known = std::make_shared<const std::map<std::string, std::string>>();
  return known;
}

}  // namespace flow
