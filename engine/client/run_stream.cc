#include "engine/client/run_stream.hpp"

#include <fmt/format.h>

#include <utility>

#include "engine/base/ids.hpp"
#include "engine/base/size_units.hpp"
#include "engine/base/throwing.hpp"
#include "engine/client/run_session.hpp"
#include "engine/store/lock.hpp"

namespace flow {

namespace {

constexpr uint64_t kAckAfter = 64;  // received replies
static_assert(kAckAfter < kUnackedMax);

void send_ack(EngineConnection& connection, uint64_t count) {
  ClientRequest request;
  request.mutable_ack_replies()->set_count(count);
  connection.send(request);
}

bool is_end(const std::string& status) {
  return status == "succeeded" || status == "failed" || status == "skipped" ||
         status == "cancelled";
}

std::string attempt_key(const std::string& task, uint32_t attempt) {
  return fmt::format("{}@{}", task, attempt);
}

/// The submission of a request that has one; else an empty one.
const client_protocol::Submission& sent_submission(const ClientRequest& request) {
  if (request.has_submit_run()) return request.submit_run().submission();
  if (request.has_preview_plan()) return request.preview_plan().submission();
  return request.resume_run().submission();
}

Error too_large(const ClientRequest& request) {
  bool is_prebuilt = sent_submission(request).has_prebuilt_graph();
  return user_error(fmt::format(
      "the request is {} bytes, and a client may send {} ({}): {}", request.ByteSizeLong(),
      kClientFrameMax, format_bytes(kClientFrameMax),
      is_prebuilt ? "it holds the graph and the sources of the script. Start the run on the "
                    "machine of the head, or pass large values as files"
                  : "pass large values as files"));
}

}  // namespace

RunOptions with_request_id(RunOptions options) {
  constexpr size_t kNameLength = 24;
  if (options.request.empty()) options.request = random_name(kNameLength);
  return options;
}

ClientRequest resume_request(const std::string& selector, const Submission& submission,
                             bool new_code) {
  ClientRequest request;
  client_protocol::ResumeRun& resume = *request.mutable_resume_run();
  resume.set_run(selector);
  resume.set_new_code(new_code);
  put_submission(submission, *resume.mutable_submission());
  return request;
}

ClientRequest serve_request(const std::string& selector, bool rolls_back,
                            const Submission& submission) {
  ClientRequest request;
  client_protocol::ServeRun& serve = *request.mutable_serve_run();
  serve.set_run(selector);
  serve.set_rolls_back(rolls_back);
  put_submission(submission, *serve.mutable_submission());
  return request;
}

std::vector<RunInfo> stopped_runs(const ServerReply& reply) {
  std::vector<RunInfo> runs;
  for (const auto& run : reply.run_stopped().runs())
    runs.push_back(value_or_throw(get_run_info(run)));
  return runs;
}

void attach_controls(detail::RunHandle& state,
                     const std::shared_ptr<EngineConnection>& connection) {
  std::lock_guard lock(state.mutex);
  state.interrupt = [connection](bool kill, const std::string&) {
    ClientRequest request;
    request.mutable_interrupt_run()->set_kill(kill);
    connection->send(request);
  };
  state.cancel = [connection](const std::string&) {
    ClientRequest request;
    request.mutable_cancel_followed_run();
    connection->send(request);
  };
  state.end_serving = [connection](const std::string&) {
    ClientRequest request;
    request.mutable_end_serving();
    connection->send(request);
  };
}

void detach_controls(detail::RunHandle& state, std::function<void()> on_interrupt) {
  std::lock_guard lock(state.mutex);
  state.interrupt = [on_interrupt = std::move(on_interrupt)](bool, const std::string&) {
    on_interrupt();
  };
  state.cancel = state.end_serving = [](const std::string&) {};
}

Error stalled_writer(const std::string& dir) {
  return environment_error(fmt::format(
      "the state `{}` is locked by {}, which exists and has not answered for {} s: if it is "
      "stopped, `kill -CONT` with its pid continues it, and it may still execute this request "
      "then. If it is killed, the state is free, and `flow resume` continues its runs",
      dir, lock_holder(dir), 2 * kStallMs / 1000));
}

// A server of another version may have answered the preface and gone before it read the request:
// its reply is here although the request could not be sent.
Result<ServerReply> exchange(EngineConnection& connection, const ClientRequest& request,
                             const char* gone) {
  constexpr int64_t kRejectionWithinMs = 100;
  if (request.ByteSizeLong() > kClientFrameMax) return error_reply(too_large(request));
  if (connection.send(request)) return connection.receive<ServerReply>();
  if (!connection.is_stalled()) {
    auto reply = connection.receive<ServerReply>(kRejectionWithinMs);
    if (reply.ok() && connection.is_other_version()) return reply;
  }
  return environment_error(gone);
}

Result<ServerReply> send_to_writer(const std::string& dir, const ClientRequest& request) {
  auto connection = UnixConnection::connect(socket_path(dir));
  FLOW_TRY(connection);
  auto reply = exchange(**connection, request);
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
    return state.report("warning",
                        "tasks that ended meanwhile are not listed: " + failed.error.message);
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
    event.ignored = task.ignored;
    event.tag = task.tag;
    event.text = task.error;
    event.at_ms = task.finished_ms;
    state.on_event(std::move(event));
  }
}

bool follow_connection(detail::RunHandle& state, EngineConnection& connection,
                       DeliveredCompletions& completions, uint64_t* received) {
  while (true) {
    auto reply = connection.receive<ServerReply>();
    if (!reply.ok()) return false;
    auto event = reply->has_event() ? get_event(reply->event()) : Result<Event>(Event());
    if (!event.ok()) return false;
    bool is_last = reply->has_error() || reply->has_run_ended();
    if (received != nullptr && ++*received % kAckAfter == 0) send_ack(connection, *received);
    if (received != nullptr && is_last) send_ack(connection, *received);
    if (reply->has_event()) completions.deliver(state, std::move(*event));
    if (reply->has_error()) state.fail(get_error(reply->error()));
    if (reply->has_run_ended()) state.on_end();
    if (is_last) return true;
  }
}

}  // namespace flow
