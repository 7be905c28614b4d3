// Converts between the messages of client.proto and the engine's types. No function has side
// effects.
//
// put_X(value, message) fills an empty message. get_X(message), except get_submission(), does not
// validate the fields. It returns a Result if the message has encoded Values, and an error of kind
// `environment` if one cannot be decoded.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/protocol/client.pb.h"
#include "engine/submission/submission.hpp"
#include "flow/flow.hpp"

namespace flow {

using client_protocol::ClientRequest;
using client_protocol::ServerReply;

/// Parses one frame, without its length. Returns an error of kind `environment` if it is no
/// protobuf message. A request or reply of a kind that this version does not know is returned with
/// no member of its oneof set.
Result<ClientRequest> decode_request(std::string_view bytes);
Result<ServerReply> decode_reply(std::string_view bytes);

ServerReply error_reply(const Error& error);
ServerReply done_reply();
ServerReply event_reply(const Event& event);

/// Encodes a Value for a field of type `bytes`; nil is "".
std::string value_bytes(const Value& value);
Result<Value> value_from_bytes(std::string_view bytes);

void put_error(const Error& error, client_protocol::Error& to);
/// An unknown kind of error is decoded as ErrorKind::internal.
Error get_error(const client_protocol::Error& from);
Result<Event> get_event(const client_protocol::Event& from);

/// `submission.environment` must not be null.
void put_submission(const Submission& submission, client_protocol::Submission& to);
/// Error (user) if the working directory is missing or not absolute, or if the graph was built on a
/// machine whose name is invalid.
Result<Submission> get_submission(const client_protocol::Submission& from);

void put_counts(const Counts& counts, client_protocol::TaskCounts& to);
Counts get_counts(const client_protocol::TaskCounts& from);
void put_counted_task(const CountedTask& task, client_protocol::CountedTask& to);
CountedTask get_counted_task(const client_protocol::CountedTask& from);
void put_counted_tasks(const std::vector<CountedTask>& tasks, client_protocol::CountedTasks& to);
std::vector<CountedTask> get_counted_tasks(const client_protocol::CountedTasks& from);

void put_service(const ServiceInfo& service, client_protocol::ServiceInfo& to);
ServiceInfo get_service(const client_protocol::ServiceInfo& from);

/// The tasks are left out: they travel as TaskLists, by put_tasks() and add_tasks().
void put_run_info(const RunInfo& info, client_protocol::RunInfo& to);
Result<RunInfo> get_run_info(const client_protocol::RunInfo& from);
/// `count` tasks from index `begin` on, or fewer at the end.
void put_tasks(const std::vector<TaskInfo>& tasks, size_t begin, size_t count,
               client_protocol::TaskList& to);
/// Appends the tasks of one list; on an error, those before the invalid one.
Status add_tasks(const client_protocol::TaskList& from, std::vector<TaskInfo>& tasks);

void put_plan(const PlanInfo& plan, client_protocol::PlanPreview& to);
PlanInfo get_plan(const client_protocol::PlanPreview& from);

void put_nodes(const std::vector<NodeInfo>& nodes, client_protocol::WorkerList& to);
std::vector<NodeInfo> get_nodes(const client_protocol::WorkerList& from);

}  // namespace flow
