// Messages between a client and the writer of a state: requests and replies of any bytes are
// decoded without a fault, and decoded ones survive encoding and decoding.
#include "engine/client/messages.hpp"
#include "engine/client/preface.hpp"
#include "engine/submission/prebuilt_graph.hpp"

namespace {

using namespace flow;

/// `again` converts a message to the engine's type and back; false: it is rejected.
template <typename Message>
void check(const Message& message, bool (*again)(const Message& from, Message& to)) {
  Message once, twice;
  if (!again(message, once)) return;
  FLOW_CHECK(again(once, twice));
  FLOW_CHECK(once.SerializeAsString() == twice.SerializeAsString());
}

bool submission_again(const client_protocol::Submission& from, client_protocol::Submission& to) {
  auto submission = get_submission(from);
  if (!submission.ok()) return false;
  if (submission->built) (void)accept_prebuilt_graph(*submission->built);
  put_submission(*submission, to);
  return true;
}

bool error_again(const client_protocol::Error& from, client_protocol::Error& to) {
  put_error(get_error(from), to);
  return true;
}

bool event_again(const client_protocol::Event& from, client_protocol::Event& to) {
  auto event = get_event(from);
  if (event.ok()) to = event_reply(*event).event();
  return event.ok();
}

bool counts_again(const client_protocol::TaskCounts& from, client_protocol::TaskCounts& to) {
  put_counts(get_counts(from), to);
  return true;
}

bool counted_tasks_again(const client_protocol::CountedTasks& from,
                         client_protocol::CountedTasks& to) {
  put_counted_tasks(get_counted_tasks(from), to);
  return true;
}

bool info_again(const client_protocol::RunInfo& from, client_protocol::RunInfo& to) {
  auto info = get_run_info(from);
  if (info.ok()) put_run_info(*info, to);
  return info.ok();
}

bool tasks_again(const client_protocol::TaskList& from, client_protocol::TaskList& to) {
  std::vector<TaskInfo> tasks;
  if (!add_tasks(from, tasks).ok()) return false;
  put_tasks(tasks, 0, tasks.size(), to);
  return true;
}

bool plan_again(const client_protocol::PlanPreview& from, client_protocol::PlanPreview& to) {
  put_plan(get_plan(from), to);
  return true;
}

bool nodes_again(const client_protocol::WorkerList& from, client_protocol::WorkerList& to) {
  put_nodes(get_nodes(from), to);
  return true;
}

void check_request(const ClientRequest& request) {
  check(request.submit_run().submission(), submission_again);
  check(request.resume_run().submission(), submission_again);
  check(request.retry_task().submission(), submission_again);
  check(request.preview_plan().submission(), submission_again);
  check(request.error(), error_again);
}

void check_reply(const ServerReply& reply) {
  check(reply.error(), error_again);
  check(reply.event(), event_again);
  check(reply.run_started().info(), info_again);
  check(reply.run_shown().info(), info_again);
  check(reply.task_counts(), counts_again);
  check(reply.counted_tasks(), counted_tasks_again);
  check(reply.task_list(), tasks_again);
  check(reply.plan_preview(), plan_again);
  check(reply.worker_list(), nodes_again);
  (void)value_from_bytes(reply.exported_value().value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  auto request = decode_request(input);
  if (request.ok()) check_request(*request);
  auto reply = decode_reply(input);
  if (reply.ok()) check_reply(*reply);
  (void)check_preface(input);
  FLOW_CHECK(check_preface(encode_preface(input)).ok());
  return 0;
}
