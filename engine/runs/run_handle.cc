// flow::Run: a queue between the turns and the host's thread.
#include "engine/runs/run_handle.hpp"

#include <fmt/format.h>

#include <utility>

#include "engine/base/clock.hpp"

namespace flow {

namespace detail {

namespace {
constexpr size_t kEventsMax =
    100'000;  // limit for a host program that does not read them; the oldest are dropped first
}

void RunHandle::on_events(std::vector<Event> new_events) {
  std::lock_guard lock(mutex);
  if (ended) return;
  for (Event& event : new_events) {
    if (events.size() >= kEventsMax) {
      events.pop_front();
      dropped++;
    }
    events.push_back(std::move(event));
  }
  has_event.notify_all();
}

void RunHandle::on_event(Event event) {
  std::vector<Event> one;
  one.push_back(std::move(event));
  on_events(std::move(one));
}

void RunHandle::report(const char* type, std::string text) {
  Event event;
  event.type = type;
  event.run = id;
  event.text = std::move(text);
  event.at_ms = now_ms();
  on_event(std::move(event));
}

void RunHandle::on_end() {
  std::lock_guard lock(mutex);
  ended = true;
  has_event.notify_all();
  has_ended.notify_all();
}

void RunHandle::fail(Error new_error) {
  std::lock_guard lock(mutex);
  if (!error) error = std::move(new_error);
  ended = true;
  has_event.notify_all();
  has_ended.notify_all();
}

std::optional<Event> RunHandle::next() {
  std::unique_lock lock(mutex);
  has_event.wait(lock, [this] { return ended || !events.empty(); });
  if (dropped > 0) {
    Event warning;
    warning.type = "warning";
    warning.run = id;
    warning.text = fmt::format(
        "{} events were dropped: they arrived faster than they were read (the run's info has their "
        "content)",
        std::exchange(dropped, 0));
    return warning;
  }
  if (events.empty()) return std::nullopt;
  std::optional<Event> event(std::move(events.front()));
  events.pop_front();
  return event;
}

void RunHandle::wait_end() {
  std::unique_lock lock(mutex);
  has_ended.wait(lock, [this] { return ended; });
  if (error) throw Failed(*error);
}

}  // namespace detail

const std::string& Run::id() const { return state_->id; }

namespace {

/// A take-over may change the functions while the host calls one: it runs on a copy.
template <typename F>
F current(detail::RunHandle& state, const F& function) {
  std::lock_guard lock(state.mutex);
  return function;
}

}  // namespace

RunInfo Run::info() const { return current(*state_, state_->info)(); }

RunInfo Run::summary() const { return current(*state_, state_->summary)(); }

Counts Run::counts() const { return current(*state_, state_->counts)(); }

std::vector<CountedTask> Run::counts_by_task() const {
  return current(*state_, state_->counts_by_task)();
}

void Run::interrupt(bool kill) { current(*state_, state_->interrupt)(kill, ""); }

void Run::cancel() { current(*state_, state_->cancel)(""); }

void Run::end_serving() { current(*state_, state_->end_serving)(""); }

std::optional<Event> Run::next_event() { return state_->next(); }

Run::Events Run::events() { return Events(*this); }

Value Run::wait() {
  state_->wait_end();
  RunInfo info = this->summary();
  if (info.status == "succeeded") return info.result;
  if (info.status == "failed") info = this->info();
  if (info.status == "failed" || info.status == "cancelled") {
    std::string message = "the run " + info.id + " was cancelled";
    if (info.status == "failed") {
      message = "the run " + info.id + " failed";
      for (const TaskInfo& task : info.tasks) {
        if (task.status != "failed") continue;
        message = "`" + task.name + "` failed: " + task.error;
        break;
      }
    }
    throw RunFailed({ErrorKind::task, message});
  }
  throw Failed({ErrorKind::interrupted, "the run " + info.id + " is " + info.status +
                                            ": `flow resume " + info.id + "` continues it"});
}

}  // namespace flow
