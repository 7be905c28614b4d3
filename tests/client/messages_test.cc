// Requests and replies, and the engine's types in them, survive encoding and decoding.
#include "engine/client/messages.hpp"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <catch2/catch.hpp>
#include <set>

using namespace flow;

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

bool is_value(const FieldDescriptor& field) {
  static const std::set<std::string> names = {"params", "data", "result", "metrics", "value"};
  return names.contains(field.name()) && field.containing_type()->name() != "BlobChunk";
}

std::string text_for(const FieldDescriptor& field, int number) {
  if (is_value(field)) return value_bytes(Value(int64_t{number}));
  std::string text = "text-" + std::to_string(number);
  return field.name() == "working_directory" ? "/" + text : text;
}

/// Sets every field to a different value; lists get two items.
void fill(Message& message, int& number) {
  const auto& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); i++) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    const bool is_list = field.is_repeated();
    for (int item = 0; item < (is_list ? 2 : 1); item++) {
      number++;
      switch (field.cpp_type()) {
        case FieldDescriptor::CPPTYPE_MESSAGE:
          fill(is_list ? *reflection.AddMessage(&message, &field)
                       : *reflection.MutableMessage(&message, &field),
               number);
          break;
        case FieldDescriptor::CPPTYPE_STRING:
          if (is_list)
            reflection.AddString(&message, &field, text_for(field, number));
          else
            reflection.SetString(&message, &field, text_for(field, number));
          break;
        case FieldDescriptor::CPPTYPE_INT32:
          reflection.SetInt32(&message, &field, -number);
          break;
        case FieldDescriptor::CPPTYPE_INT64:
          reflection.SetInt64(&message, &field, -number);
          break;
        case FieldDescriptor::CPPTYPE_UINT32:
          reflection.SetUInt32(&message, &field, static_cast<uint32_t>(number));
          break;
        case FieldDescriptor::CPPTYPE_UINT64:
          reflection.SetUInt64(&message, &field, static_cast<uint64_t>(number));
          break;
        case FieldDescriptor::CPPTYPE_DOUBLE:
          reflection.SetDouble(&message, &field, number + 0.5);
          break;
        case FieldDescriptor::CPPTYPE_BOOL:
          reflection.SetBool(&message, &field, true);
          break;
        default:
          FAIL("a type of field that this test does not know: " << field.full_name());
      }
    }
  }
}

template <typename M>
M filled() {
  M message;
  int number = 0;
  fill(message, number);
  return message;
}

/// One message of each kind, with every field set.
template <typename M>
std::vector<M> all_kinds() {
  std::vector<M> all;
  int number = 0;
  for (int i = 0; i < M::descriptor()->field_count(); i++) {
    M& message = all.emplace_back();
    fill(*message.GetReflection()->MutableMessage(&message, M::descriptor()->field(i)), number);
  }
  return all;
}

std::string error_of(const Status& status) { return status.ok() ? "" : status.error().message; }
template <typename T>
std::string error_of(const Result<T>& result) {
  return result.ok() ? "" : result.error().message;
}

}  // namespace

TEST_CASE("a run and its tasks are decoded as they were encoded") {
  RunInfo run;
  run.id = "r-1";
  run.name = "name";
  run.pipeline = "pipeline";
  run.status = "running";
  run.directory = "/d";
  run.script = "laptop:/d/p.lua";
  run.started_ms = 1'000;
  run.finished_ms = 2'000;
  run.counts = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  run.result = Value::map({{"x", 1.5}});
  run.params = Value::map({{"n", int64_t{3}}});
  run.retried = 4;
  TaskInfo task;
  task.name = "train#1";
  task.key = "k";
  task.status = "running";
  task.worker = "w1";
  task.error = "it\nfailed";
  task.attempts = 3;
  task.ranks = 4;
  task.grew_from = 2;
  task.cached = true;
  task.started_ms = 1'100;
  task.finished_ms = 1'900;
  task.gpus = {"GPU-a", "GPU-b"};
  task.waits_for = "room";
  task.fraction = 0.25;
  task.metrics = Value::map({{"loss", 0.5}});
  run.tasks = {task, TaskInfo{}};
  run.tasks[1].name = "plain";

  client_protocol::RunInfo info;
  put_run_info(run, info);
  auto back = get_run_info(info);
  REQUIRE(back.ok());
  client_protocol::TaskList first, rest;
  put_tasks(run.tasks, 0, 1, first);
  put_tasks(run.tasks, 1, 100, rest);
  REQUIRE(add_tasks(first, back->tasks).ok());
  REQUIRE(add_tasks(rest, back->tasks).ok());
  CHECK(back->json() == run.json());
  CHECK_THAT(run.json(), Catch::Matchers::Contains("\"grew_from\":2"));
}

TEST_CASE("every request and every reply is decoded as it was encoded") {
  for (const ClientRequest& request : all_kinds<ClientRequest>()) {
    auto back = decode_request(request.SerializeAsString());
    REQUIRE(back.ok());
    CHECK(back->DebugString() == request.DebugString());
    CHECK(back->kind_case() == request.kind_case());
  }
  for (const ServerReply& reply : all_kinds<ServerReply>()) {
    auto back = decode_reply(reply.SerializeAsString());
    REQUIRE(back.ok());
    CHECK(back->DebugString() == reply.DebugString());
    CHECK(back->kind_case() == reply.kind_case());
  }
}

TEST_CASE("every field of a message is in the corresponding type of the engine") {
  {
    auto from = filled<client_protocol::Submission>();
    from.mutable_prebuilt_graph()->set_machine("laptop");
    auto submission = get_submission(from);
    REQUIRE(submission.ok());
    client_protocol::Submission to;
    put_submission(*submission, to);
    CHECK(to.DebugString() == from.DebugString());
  }
  {
    auto from = filled<client_protocol::Event>();
    auto event = get_event(from);
    REQUIRE(event.ok());
    CHECK(event_reply(*event).event().DebugString() == from.DebugString());
  }
  {
    auto from = filled<client_protocol::RunInfo>();
    auto info = get_run_info(from);
    REQUIRE(info.ok());
    client_protocol::RunInfo to;
    put_run_info(*info, to);
    CHECK(to.DebugString() == from.DebugString());
  }
  {
    auto from = filled<client_protocol::ServiceInfo>();
    client_protocol::ServiceInfo to;
    put_service(get_service(from), to);
    CHECK(to.DebugString() == from.DebugString());
  }
  {
    auto from = filled<client_protocol::TaskList>();
    std::vector<TaskInfo> tasks;
    REQUIRE(add_tasks(from, tasks).ok());
    client_protocol::TaskList to;
    put_tasks(tasks, 0, tasks.size(), to);
    CHECK(to.DebugString() == from.DebugString());
  }
  {
    auto from = filled<client_protocol::CountedTasks>();
    client_protocol::CountedTasks to;
    put_counted_tasks(get_counted_tasks(from), to);
    CHECK(to.DebugString() == from.DebugString());
  }
  {
    auto from = filled<client_protocol::PlanPreview>();
    client_protocol::PlanPreview to;
    put_plan(get_plan(from), to);
    CHECK(to.DebugString() == from.DebugString());
  }
  {
    auto from = filled<client_protocol::WorkerList>();
    client_protocol::WorkerList to;
    to.set_address(from.address());
    put_nodes(get_nodes(from), to);
    CHECK(to.DebugString() == from.DebugString());
  }
  {
    auto from = filled<client_protocol::Error>();
    CHECK(error_reply(get_error(from)).error().DebugString() == from.DebugString());
  }
}

TEST_CASE("an error of an unknown kind is an internal error") {
  client_protocol::Error from;
  from.set_kind(77);
  from.set_message("m");
  CHECK(get_error(from).kind == ErrorKind::internal);
  CHECK(get_error(from).message == "m");
}

TEST_CASE("bytes that are not a message are rejected with a message text") {
  for (const ClientRequest& request : all_kinds<ClientRequest>()) {
    std::string bytes = request.SerializeAsString();
    bytes.back() = '\xff';
    bytes += '\xff';
    CHECK(error_of(decode_request(bytes)) ==
          "the other side sent " + std::to_string(bytes.size()) +
              " bytes that are not a request of the client protocol");
  }
  for (const ServerReply& reply : all_kinds<ServerReply>()) {
    std::string bytes = reply.SerializeAsString();
    bytes.back() = '\xff';
    bytes += '\xff';
    CHECK(error_of(decode_reply(bytes)) ==
          "the other side sent " + std::to_string(bytes.size()) +
              " bytes that are not a reply of the client protocol");
  }
  CHECK(decode_request("")->kind_case() == ClientRequest::KIND_NOT_SET);
  CHECK(decode_reply("")->kind_case() == ServerReply::KIND_NOT_SET);
}

TEST_CASE("a non-canonical value in a message is rejected with a message text") {
  using Catch::Matchers::StartsWith;
  const std::string wrong = "\x18\x01",
                    sentence = "the other side sent a value that cannot be read";
  client_protocol::Event event;
  event.set_data(wrong);
  CHECK_THAT(error_of(get_event(event)), StartsWith(sentence));
  client_protocol::RunInfo info;
  info.set_result(wrong);
  CHECK_THAT(error_of(get_run_info(info)), StartsWith(sentence));
  client_protocol::TaskList tasks;
  tasks.add_tasks()->set_metrics(wrong);
  std::vector<TaskInfo> added;
  CHECK_THAT(error_of(add_tasks(tasks, added)), StartsWith(sentence));
  client_protocol::Submission submission;
  submission.set_working_directory("/d");
  submission.set_params(wrong);
  CHECK_THAT(error_of(get_submission(submission)), StartsWith(sentence));
}

TEST_CASE("a submission needs an absolute working directory, and a graph the name of its machine") {
  client_protocol::Submission submission;
  submission.set_working_directory("d");
  CHECK(error_of(get_submission(submission)) == "a request without an absolute working directory");
  submission.set_working_directory("/d");
  CHECK(get_submission(submission).ok());
  submission.mutable_prebuilt_graph()->set_machine("");
  CHECK(error_of(get_submission(submission)) == "a request from a machine without a name");
}
