// The wire's executor side.
#include "engine/executor/session.hpp"

#include <unistd.h>

#include <chrono>
#include <csignal>

#include "engine/base/clock.hpp"
#include "engine/executor/processes.hpp"

namespace flow {

namespace {

constexpr size_t kBufferMax = 64 * 1024;
constexpr auto kBufferedMax = std::chrono::milliseconds(1);

}  // namespace

bool same_attempt(const wire::AttemptName& a, const wire::AttemptName& b) {
  return a.unit() == b.unit() && a.attempt() == b.attempt() && a.epoch() == b.epoch() &&
         a.run() == b.run();
}

// Both threads live as long as the process.
Session::Session() : reader_([this] { read_frames(); }), flusher_([this] { flush_late(); }) {
  reader_.detach();
  flusher_.detach();
}

void Session::end() {
  // The head is gone: what this attempt started goes with it.
  if (int group = group_.load(); group > 0) ::kill(-group, SIGKILL);
  kill_children();
  ::_exit(0);
}

void Session::read_frames() {
  FrameCutter cutter;
  std::string chunk(256 * 1024, '\0');
  while (true) {
    ssize_t got = ::read(kWireDescriptor, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) end();
    cutter.add({chunk.data(), static_cast<size_t>(got)});
    std::string_view frame;
    bool broken = false;
    while (cutter.next(frame, broken)) {
      wire::ToExecutor message;
      if (!message.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) end();
      handle(message);
    }
    if (broken) end();
  }
}

void Session::handle(wire::ToExecutor& message) {
  std::lock_guard lock(mutex_);
  switch (message.kind_case()) {
    case wire::ToExecutor::kLoad:
      bundles_[message.load().digest()] = std::move(*message.mutable_load()->mutable_bundle());
      break;
    case wire::ToExecutor::kEnvironment: {
      auto& variables = environments_[message.environment().run()];
      variables.clear();
      for (const wire::EnvVar& variable : message.environment().vars())
        variables[variable.name()] = variable.value();
      break;
    }
    case wire::ToExecutor::kStart:
      queue_.push_back(std::move(*message.mutable_start()));
      changed_.notify_all();
      break;
    case wire::ToExecutor::kStop: {
      if (same_attempt(message.stop().id(), current_)) {
        stopping_ = true;
        if (message.stop().gentle()) break;
        terminated_ = true;
        if (int group = group_.load(); group > 0)
          ::kill(-group, message.stop().kill() ? SIGKILL : SIGTERM);
        changed_.notify_all();
        break;
      }
      for (auto it = queue_.begin(); it != queue_.end(); ++it) {
        if (!same_attempt(it->id(), message.stop().id())) continue;
        wire::FromExecutor reply;
        *reply.mutable_finished()->mutable_id() = it->id();
        reply.mutable_finished()->set_outcome(3);
        queue_.erase(it);
        send(reply, true);
        break;
      }
      break;
    }
    case wire::ToExecutor::kSaved:
      if (!same_attempt(message.saved().id(), current_)) break;
      saved_[message.saved().name()] = message.saved().ok();
      changed_.notify_all();
      break;
    case wire::ToExecutor::kReturnQueued: {
      wire::FromExecutor reply;
      for (wire::Start& start : queue_) *reply.mutable_returned()->add_ids() = start.id();
      queue_.clear();
      if (reply.has_returned()) send(reply, true);
      break;
    }
    default:
      break;
  }
}

wire::Start Session::next() {
  std::unique_lock lock(mutex_);
  if (queue_.empty()) {
    lock.unlock();
    flush();
    lock.lock();
    current_ = {};
    changed_.wait(lock, [this] { return !queue_.empty(); });
  }
  wire::Start start = std::move(queue_.front());
  queue_.pop_front();
  current_ = start.id();
  stopping_ = terminated_ = false;
  saved_.clear();
  return start;
}

void Session::send(const wire::FromExecutor& message, bool now) {
  std::lock_guard lock(sending_);
  bool first = out_.empty();
  append_frame(out_, message);
  if (!now && out_.size() < kBufferMax) {
    if (first) buffered_.notify_one();
    return;
  }
  if (!write_fully(kWireDescriptor, out_)) end();
  out_.clear();
}

// A long attempt may follow a short one: what was buffered does not wait for it.
void Session::flush_late() {
  while (true) {
    {
      std::unique_lock lock(sending_);
      buffered_.wait(lock, [this] { return !out_.empty(); });
    }
    std::this_thread::sleep_for(kBufferedMax);
    flush();
  }
}

void Session::flush() {
  std::lock_guard lock(sending_);
  if (out_.empty()) return;
  if (!write_fully(kWireDescriptor, out_)) end();
  out_.clear();
}

bool Session::has_queued() {
  std::lock_guard lock(mutex_);
  return !queue_.empty();
}

void Session::forget_saved(const std::string& name) {
  std::lock_guard lock(mutex_);
  saved_.erase(name);
}

bool Session::wait_saved(const std::string& name) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return saved_.contains(name); });
  bool ok = saved_[name];
  saved_.erase(name);
  return ok;
}

std::string Session::bundle(const std::string& digest) {
  std::lock_guard lock(mutex_);
  auto found = bundles_.find(digest);
  return found == bundles_.end() ? "" : found->second;
}

const std::map<std::string, std::string>& Session::environment(const std::string& run) {
  std::lock_guard lock(mutex_);
  return environments_[run];
}

}  // namespace flow
