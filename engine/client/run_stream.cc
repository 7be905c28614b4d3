#include "engine/client/run_stream.hpp"

#include <fmt/format.h>

#include "engine/base/clock.hpp"
#include "engine/base/ids.hpp"
#include "engine/client/messages.hpp"
#include "engine/client/run_session.hpp"
#include "engine/store/lock.hpp"

namespace flow {

namespace {

constexpr uint64_t kAckAfter = 64;  // frames heard
static_assert(kAckAfter < kUnackedMax);

void send_ack(EngineConnection& connection, uint64_t count) {
  connection.send(Value::map({{"verb", "heard"}, {"count", static_cast<int64_t>(count)}}));
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
  fields.emplace_back("version", int64_t{kClientProtocolVersion});
  fields.emplace_back("verb", verb);
  return Value::map(std::move(fields));
}

RunOptions with_request_id(RunOptions options) {
  constexpr size_t kNameLength = 24;
  if (options.request.empty()) options.request = random_name(kNameLength);
  return options;
}

void attach_controls(detail::RunHandle& state,
                     const std::shared_ptr<EngineConnection>& connection) {
  std::lock_guard lock(state.mutex);
  state.interrupt = [connection](bool kill) {
    connection->send(Value::map({{"verb", "interrupt"}, {"kill", kill}}));
  };
  state.cancel = [connection] { connection->send(Value::map({{"verb", "cancel"}})); };
  state.end_serving = [connection] { connection->send(Value::map({{"verb", "end_serving"}})); };
}

void detach_controls(detail::RunHandle& state, std::function<void()> on_interrupt) {
  std::lock_guard lock(state.mutex);
  state.interrupt = [on_interrupt = std::move(on_interrupt)](bool) { on_interrupt(); };
  state.cancel = state.end_serving = [] {};
}

void warn(detail::RunHandle& state, std::string text) {
  Event event;
  event.type = "warning";
  event.run = state.id;
  event.text = std::move(text);
  event.at_ms = now_ms();
  state.on_event(std::move(event));
}

Error stalled_writer(const std::string& dir) {
  return environment_error(fmt::format(
      "the state `{}` is locked by {}, which is there and has not answered for {} s: if it is "
      "stopped, `kill -CONT` and its pid lets it go on, and what was asked of it may be carried "
      "out then. If it is killed, the state is free, and `flow resume` takes up what it ran",
      dir, lock_holder(dir), 2 * kStallMs / 1000));
}

Result<Value> ask_writer(const std::string& dir, const Value& request) {
  auto connection = UnixConnection::connect(socket_path(dir));
  FLOW_TRY(connection);
  auto reply = (*connection)->send(request)
                   ? (*connection)->receive()
                   : Result<Value>(environment_error("the other side is gone"));
  if ((*connection)->is_stalled()) return stalled_writer(dir);
  return reply;
}

void DeliveredCompletions::deliver(detail::RunHandle& state, Event event) {
  if (since_ms_ == 0) since_ms_ = event.at_ms;
  if (event.type == "task" && is_end(event.status)) {
    std::string key = attempt_key(event.task, event.attempt);
    if (delivered_late_.erase(key) > 0) return;
    delivered_.insert(std::move(key));
  }
  state.on_event(std::move(event));
}

void DeliveredCompletions::deliver_missed(detail::RunHandle& state) {
  std::function<RunInfo()> load_info;
  {
    std::lock_guard lock(state.mutex);
    load_info = state.info;
  }
  RunInfo run;
  try {
    run = load_info();
  } catch (const Failed& failed) {
    return warn(state, "what ended meanwhile is not told: " + failed.error.message);
  }
  for (const TaskInfo& task : run.tasks) {
    bool is_missed = is_end(task.status) && task.finished_ms >= since_ms_ &&
                     delivered_.insert(attempt_key(task.name, task.attempts)).second;
    if (!is_missed) continue;
    delivered_late_.insert(attempt_key(task.name, task.attempts));
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

bool follow_connection(detail::RunHandle& state, EngineConnection& connection,
                       DeliveredCompletions& completions, uint64_t* received) {
  while (true) {
    auto frame = connection.receive();
    if (!frame.ok()) return false;
    std::string kind = text_field(*frame, "frame");
    bool is_last = kind == "error" || kind == "end";
    if (received != nullptr && ++*received % kAckAfter == 0) send_ack(connection, *received);
    if (received != nullptr && is_last) send_ack(connection, *received);
    if (kind == "event") completions.deliver(state, event_from_value(*frame));
    if (kind == "error") state.fail(error_from_value(*frame));
    if (kind == "end") state.on_end();
    if (is_last) return true;
  }
}

}  // namespace flow
