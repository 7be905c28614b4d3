#include "engine/client/run_stream.hpp"

#include <fmt/format.h>

#include "engine/base/clock.hpp"
#include "engine/base/ids.hpp"
#include "engine/client/messages.hpp"
#include "engine/client/run_session.hpp"
#include "engine/store/lock.hpp"

namespace flow {

namespace {

constexpr uint64_t kTellAfter = 64;  // frames heard
static_assert(kTellAfter < kUnheardMax);

void tell_heard(FrameLink& link, uint64_t count) {
  link.send(Value::map({{"verb", "heard"}, {"count", static_cast<int64_t>(count)}}));
}

bool is_end(const std::string& status) {
  return status == "succeeded" || status == "failed" || status == "skipped" ||
         status == "cancelled";
}

std::string attempt_key(const std::string& task, uint32_t attempt) {
  return fmt::format("{}@{}", task, attempt);
}

}  // namespace

Value request_of(const char* verb, std::vector<std::pair<Value, Value>> fields) {
  fields.emplace_back("version", int64_t{kLinkVersion});
  fields.emplace_back("verb", verb);
  return Value::map(std::move(fields));
}

RunOptions asked_once(RunOptions options) {
  constexpr size_t kNameLength = 24;
  if (options.request.empty()) options.request = random_name(kNameLength);
  return options;
}

void steer(detail::RunState& state, const std::shared_ptr<FrameLink>& link) {
  std::lock_guard lock(state.mutex);
  state.interrupt = [link](bool kill) {
    link->send(Value::map({{"verb", "interrupt"}, {"kill", kill}}));
  };
  state.cancel = [link] { link->send(Value::map({{"verb", "cancel"}})); };
  state.end_serving = [link] { link->send(Value::map({{"verb", "end_serving"}})); };
}

void steer_nowhere(detail::RunState& state, std::function<void()> give_up) {
  std::lock_guard lock(state.mutex);
  state.interrupt = [give_up = std::move(give_up)](bool) { give_up(); };
  state.cancel = state.end_serving = [] {};
}

void warn(detail::RunState& state, std::string text) {
  Event event;
  event.type = "warning";
  event.run = state.id;
  event.text = std::move(text);
  event.at_ms = now_ms();
  state.on_event(std::move(event));
}

Error silent_writer(const std::string& dir) {
  return environment_error(fmt::format(
      "the state `{}` is locked by {}, which is there and has not answered for {} s: if it is "
      "stopped, `kill -CONT` and its pid lets it go on, and what was asked of it may be carried "
      "out then. If it is killed, the state is free, and `flow resume` takes up what it ran",
      dir, lock_holder(dir), 2 * kSilentMs / 1000));
}

Result<Value> ask_writer(const std::string& dir, const Value& request) {
  auto link = SocketLink::connect(socket_path(dir));
  FLOW_TRY(link);
  auto reply = (*link)->send(request) ? (*link)->receive()
                                      : Result<Value>(environment_error("the other side is gone"));
  if ((*link)->is_silent()) return silent_writer(dir);
  return reply;
}

void EndsTold::tell(detail::RunState& state, Event event) {
  if (since_ms_ == 0) since_ms_ = event.at_ms;
  if (event.type == "task" && is_end(event.status)) {
    std::string key = attempt_key(event.task, event.attempt);
    if (told_late_.erase(key) > 0) return;
    told_.insert(std::move(key));
  }
  state.on_event(std::move(event));
}

void EndsTold::tell_missed(detail::RunState& state) {
  std::function<RunInfo()> look;
  {
    std::lock_guard lock(state.mutex);
    look = state.info;
  }
  RunInfo run;
  try {
    run = look();
  } catch (const Failed& failed) {
    return warn(state, "what ended meanwhile is not told: " + failed.error.message);
  }
  for (const TaskInfo& task : run.tasks) {
    bool is_missed = is_end(task.status) && task.finished_ms >= since_ms_ &&
                     told_.insert(attempt_key(task.name, task.attempts)).second;
    if (!is_missed) continue;
    told_late_.insert(attempt_key(task.name, task.attempts));
    Event event;
    event.type = "task";
    event.run = run.id;
    event.task = task.name;
    event.attempt = task.attempts;
    event.status = task.status;
    event.cached = task.cached;
    event.text = task.error;
    event.at_ms = task.finished_ms;
    state.on_event(std::move(event));
  }
}

bool follow_link(detail::RunState& state, FrameLink& link, EndsTold& ends, uint64_t* heard) {
  while (true) {
    auto frame = link.receive();
    if (!frame.ok()) return false;
    std::string kind = text_field(*frame, "frame");
    bool is_last = kind == "error" || kind == "end";
    if (heard != nullptr && ++*heard % kTellAfter == 0) tell_heard(link, *heard);
    if (heard != nullptr && is_last) tell_heard(link, *heard);
    if (kind == "event") ends.tell(state, event_from_value(*frame));
    if (kind == "error") state.fail(error_from_value(*frame));
    if (kind == "end") state.on_end();
    if (is_last) return true;
  }
}

}  // namespace flow
