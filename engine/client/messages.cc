// Frames, values, errors, events and submissions. Runs, plans and workers are in run_messages.cc.
#include "engine/client/messages.hpp"

#include <fmt/format.h>

#include <utility>

#include "engine/base/user_name.hpp"
#include "engine/cluster/session/handshake.hpp"
#include "engine/submission/requester.hpp"

namespace flow {

namespace {

template <typename Message>
Result<Message> decode_message(std::string_view bytes, const char* what) {
  Message message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return environment_error(
        fmt::format("the other side sent {} bytes that are not a {} of the client protocol",
                    bytes.size(), what));
  return message;
}

using NamedTexts = std::vector<std::pair<std::string, std::string>>;
using NamedTextFields = google::protobuf::RepeatedPtrField<client_protocol::NamedText>;

void put_named_texts(const NamedTexts& texts, NamedTextFields& to) {
  for (const auto& [name, text] : texts) {
    client_protocol::NamedText& each = *to.Add();
    each.set_name(name);
    each.set_text(text);
  }
}

NamedTexts get_named_texts(const NamedTextFields& from) {
  NamedTexts texts;
  for (const client_protocol::NamedText& each : from) texts.emplace_back(each.name(), each.text());
  return texts;
}

void put_prebuilt_graph(const PrebuiltGraph& graph, client_protocol::PrebuiltGraph& to) {
  to.set_machine(graph.machine);
  to.set_plan(graph.plan);
  to.set_bundle(graph.bundle);
  for (const std::string& line : graph.printed) to.add_printed(line);
}

Result<PrebuiltGraph> get_prebuilt_graph(const client_protocol::PrebuiltGraph& from) {
  if (!cluster::is_process_name(from.machine()))
    return user_error("a request from a machine without a name");
  PrebuiltGraph graph;
  graph.machine = from.machine();
  graph.plan = from.plan();
  graph.bundle = from.bundle();
  graph.printed.assign(from.printed().begin(), from.printed().end());
  return graph;
}

void put_options(const RunOptions& options, client_protocol::RunOptions& to) {
  to.set_name(options.name);
  to.set_request(options.request);
  to.set_jobs(options.jobs);
  to.set_fresh(options.fresh);
  to.set_fail_fast(options.fail_fast);
  to.set_offline(options.offline);
  to.set_grace_ms(options.grace_ms);
  to.set_serve_for_ms(options.serve_for_ms);
  to.set_front_lease_ms(options.front_lease_ms);
  to.set_detached(options.detached);
  put_named_texts(options.text_params, *to.mutable_text_params());
  to.set_params_json(options.params_json);
  to.set_script_text(options.script_text);
  to.set_logs(options.logs);
  for (const ConfigFile& file : options.config.files) {
    client_protocol::NamedText& each =
        file.is_prices ? *to.add_price_files() : *to.add_config_files();
    each.set_name(file.path);
    each.set_text(file.text);
  }
  to.set_profile(options.config.profile);
  to.set_on_end(options.on_end);
  to.set_budget(options.budget);
}

RunOptions get_options(const client_protocol::RunOptions& from) {
  RunOptions options;
  options.name = from.name();
  options.request = from.request();
  options.jobs = from.jobs();
  options.fresh = from.fresh();
  options.fail_fast = from.fail_fast();
  options.offline = from.offline();
  options.grace_ms = from.grace_ms();
  options.serve_for_ms = from.serve_for_ms();
  options.front_lease_ms = from.front_lease_ms();
  options.detached = from.detached();
  options.text_params = get_named_texts(from.text_params());
  options.params_json = from.params_json();
  options.script_text = from.script_text();
  options.logs = from.logs();
  for (const client_protocol::NamedText& file : from.config_files())
    options.config.files.push_back({file.name(), file.text()});
  for (const client_protocol::NamedText& file : from.price_files())
    options.config.files.push_back({file.name(), file.text(), true});
  options.budget = from.budget();
  options.config.profile = from.profile();
  options.on_end = from.on_end();
  return options;
}

void put_event(const Event& event, client_protocol::Event& to) {
  to.set_type(event.type);
  to.set_run(event.run);
  to.set_task(event.task);
  to.set_attempt(event.attempt);
  to.set_status(event.status);
  to.set_cached(event.cached);
  to.set_ignored(event.ignored);
  to.set_rank(event.rank);
  to.set_tag(event.tag);
  to.set_fraction(event.fraction);
  to.set_text(event.text);
  to.set_data(value_bytes(event.data));
  to.set_at_ms(event.at_ms);
  to.set_cause(event.cause);
  to.set_evidence(event.evidence);
  to.set_last_line(event.last_line);
  for (const CountedTask& task : event.counts) put_counted_task(task, *to.add_counts());
}

}  // namespace

Result<ClientRequest> decode_request(std::string_view bytes) {
  return decode_message<ClientRequest>(bytes, "request");
}

Result<ServerReply> decode_reply(std::string_view bytes) {
  return decode_message<ServerReply>(bytes, "reply");
}

ServerReply error_reply(const Error& error) {
  ServerReply reply;
  put_error(error, *reply.mutable_error());
  return reply;
}

ServerReply done_reply() {
  ServerReply reply;
  reply.mutable_done();
  return reply;
}

ServerReply event_reply(const Event& event) {
  ServerReply reply;
  put_event(event, *reply.mutable_event());
  return reply;
}

std::string value_bytes(const Value& value) {
  return value.kind() == Value::Kind::nil ? std::string() : encode_value(value);
}

Result<Value> value_from_bytes(std::string_view bytes) {
  if (bytes.empty()) return Value();
  auto value = decode_value(bytes);
  if (!value.ok())
    return environment_error("the other side sent a value that cannot be read: " +
                             value.error().message);
  return value;
}

void put_error(const Error& error, client_protocol::Error& to) {
  to.set_kind(static_cast<uint8_t>(error.kind));
  to.set_message(error.message);
}

Error get_error(const client_protocol::Error& from) {
  bool is_known = from.kind() <= static_cast<uint8_t>(ErrorKind::internal);
  return {is_known ? static_cast<ErrorKind>(from.kind()) : ErrorKind::internal, from.message()};
}

Result<Event> get_event(const client_protocol::Event& from) {
  auto data = value_from_bytes(from.data());
  FLOW_TRY(data);
  Event event;
  event.type = from.type();
  event.run = from.run();
  event.task = from.task();
  event.attempt = from.attempt();
  event.status = from.status();
  event.cached = from.cached();
  event.ignored = from.ignored();
  event.rank = from.rank();
  event.tag = from.tag();
  event.fraction = from.fraction();
  event.text = from.text();
  event.data = std::move(*data);
  event.at_ms = from.at_ms();
  event.cause = from.cause();
  event.evidence = from.evidence();
  event.last_line = from.last_line();
  for (const auto& task : from.counts()) event.counts.push_back(get_counted_task(task));
  return event;
}

void put_submission(const Submission& submission, client_protocol::Submission& to) {
  to.set_script(submission.script);
  to.set_working_directory(submission.working_directory);
  to.set_params(value_bytes(submission.params));
  if (submission.built) put_prebuilt_graph(*submission.built, *to.mutable_prebuilt_graph());
  put_named_texts(*submission.environment, *to.mutable_environment());
  put_options(submission.options, *to.mutable_options());
  to.set_user(submission.user);
  to.set_by(submission.by);
}

Result<Submission> get_submission(const client_protocol::Submission& from) {
  Submission submission;
  submission.script = from.script();
  submission.working_directory = from.working_directory();
  if (submission.working_directory.empty() || submission.working_directory[0] != '/')
    return user_error("a request without an absolute working directory");
  auto params = value_from_bytes(from.params());
  FLOW_TRY(params);
  submission.params = std::move(*params);
  if (from.has_prebuilt_graph()) {
    auto graph = get_prebuilt_graph(from.prebuilt_graph());
    FLOW_TRY(graph);
    submission.built = std::make_shared<const PrebuiltGraph>(std::move(*graph));
  }
  submission.environment =
      std::make_shared<const EnvironmentVariables>(get_named_texts(from.environment()));
  submission.options = get_options(from.options());
  if (from.user().size() > kUserNameMax)
    return user_error(fmt::format("a request of a user whose name has {} bytes; the limit is {}",
                                  from.user().size(), kUserNameMax));
  submission.user = from.user();
  submission.by = clean_requester(from.by());
  return submission;
}

}  // namespace flow
