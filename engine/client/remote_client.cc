#include "engine/client/remote_client.hpp"

#include <fmt/format.h>

#include <chrono>

#include "engine/base/clock.hpp"
#include "engine/base/ids.hpp"
#include "engine/base/log.hpp"
#include "engine/base/throwing.hpp"
#include "engine/client/blob_frames.hpp"
#include "engine/client/remote_export.hpp"
#include "engine/client/run_stream.hpp"
#include "engine/cluster/session/session_options.hpp"
#include "engine/query/upload_result.hpp"

namespace flow {

namespace {

/// How long a request that starts a run is repeated while its connections break, and the query for
/// the outcome of an ended run.
constexpr int64_t kAskAgainMs = 30'000;

constexpr const char* kGone = "the head has gone before its answer";

/// The head has another version of the client protocol: a retry does not help.
struct OtherVersion : Failed {
  using Failed::Failed;
};

ServerReply checked(ServerReply reply) {
  if (reply.has_error()) throw Failed(get_error(reply.error()));
  return reply;
}

}  // namespace

Result<std::unique_ptr<detail::EngineImpl>> RemoteEngine::open(
    const EngineOptions& options, const TransportFactory& make_transport) {
  if (!options.state.empty() || leads_cluster(options) || !options.resources.empty())
    return user_error(
        "a client of a head has no state, workers or resources of its own: give either the head or "
        "these");
  std::unique_ptr<RemoteEngine> engine(new RemoteEngine(options));
  auto head_connector = HeadConnector::open(options.head, options.secret_file, make_transport);
  FLOW_TRY(head_connector);
  engine->head_connector_ = std::move(*head_connector);
  return std::unique_ptr<detail::EngineImpl>(std::move(engine));
}

RemoteEngine::~RemoteEngine() {
  {
    std::lock_guard lock(wakeup_->mutex);
    wakeup_->quit = true;
    wakeup_->changed.notify_all();
  }
  if (head_connector_) head_connector_->close();
  followers_.join();
  request_connection_.reset();
}

void RemoteEngine::define(const std::string& name, const std::string&, NativeTask) {
  throw Failed(environment_error(
      fmt::format("the native task `{}` can't be defined: this is a client of the head at {}, and "
                  "native tasks run in the head",
                  name, options_.head)));
}

void RemoteEngine::define_operations(const std::string& name, const std::string&) {
  throw Failed(environment_error(
      fmt::format("the operations `{}` can't be defined: this is a client of the head at {}, which "
                  "has its own",
                  name, options_.head)));
}

RemoteEngine::Files RemoteEngine::build(Submission& submission) {
  Builder builder(value_or_throw(find_executor(options_)));
  PrebuiltGraphWithFiles here = value_or_throw(prebuild_graph(submission, builder));
  submission.built = std::make_shared<const PrebuiltGraph>(std::move(here.built));
  submission.params = Value();  // the graph has them
  submission.options.text_params.clear();
  submission.options.params_json.clear();
  return {std::move(here.files), std::move(here.downloads)};
}

// ---- queries

// The head hangs up on a connection that is idle for a while: then a new one is made.
ServerReply RemoteEngine::request_reply(const ClientRequest& request) const {
  std::lock_guard lock(request_mutex_);
  if (request_connection_) {
    auto reply = exchange(*request_connection_, request, kGone);
    if (reply.ok()) return checked(std::move(*reply));
  }
  request_connection_ = value_or_throw(head_connector_->connect());
  return checked(value_or_throw(exchange(*request_connection_, request, kGone)));
}

RunInfo RemoteEngine::fetch_info(const std::string& selector, bool with_tasks) const {
  auto connection = value_or_throw(head_connector_->connect());
  ClientRequest request;
  request.mutable_show_run()->set_run(selector);
  request.mutable_show_run()->set_with_tasks(with_tasks);
  std::vector<TaskInfo> tasks;
  ServerReply reply = value_or_throw(exchange(*connection, request, kGone));
  while (reply.has_task_list()) {
    ok_or_throw(add_tasks(reply.task_list(), tasks));
    reply = value_or_throw(connection->receive<ServerReply>());
  }
  if (connection->is_other_version()) throw OtherVersion(get_error(reply.error()));
  reply = checked(std::move(reply));
  state_bytes_ = reply.run_shown().state_bytes();
  RunInfo run = value_or_throw(get_run_info(reply.run_shown().info()));
  run.tasks = std::move(tasks);
  return run;
}

RunInfo RemoteEngine::show(const std::string& selector) { return fetch_info(selector, true); }

namespace {

bool has_ended(const std::weak_ptr<detail::RunHandle>& weak) {
  auto state = weak.lock();
  if (!state) return true;
  std::lock_guard lock(state->mutex);
  return state->ended;
}

}  // namespace

// The outcome of an abandoned run is not known here: it is `interrupted`.
RunInfo RemoteEngine::latest_info(FollowedRun& followed, bool tasks) const {
  int64_t until = monotonic_us() + kAskAgainMs * 1000;
  cluster::ReconnectBackoff backoff;
  while (!followed.is_abandoned) {
    try {
      RunInfo info = fetch_info(followed.id, tasks);
      std::lock_guard lock(followed.mutex);
      followed.last = info;
      return info;
    } catch (const OtherVersion&) {
      throw;
    } catch (const Failed& failed) {
      bool is_late = monotonic_us() > until;
      if (failed.error.kind != ErrorKind::environment || is_late) throw;
    }
    if (!has_ended(followed.state)) {
      std::lock_guard lock(followed.mutex);
      return followed.last;
    }
    if (!pause(backoff, &followed) && !followed.is_abandoned)
      throw Failed(environment_error(kGone));
  }
  std::lock_guard lock(followed.mutex);
  followed.last.id = followed.id;
  followed.last.status = "interrupted";
  return followed.last;
}

Counts RemoteEngine::count(FollowedRun& followed) const {
  try {
    ClientRequest request;
    request.mutable_count_tasks()->set_run(followed.id);
    ServerReply reply = request_reply(request);
    std::lock_guard lock(followed.mutex);
    if (reply.has_task_counts()) followed.counts = get_counts(reply.task_counts());
  } catch (const Failed&) {  // the newest counts that are known stay
  }
  std::lock_guard lock(followed.mutex);
  return followed.counts;
}

std::vector<CountedTask> RemoteEngine::count_by_task(const std::string& run) const {
  try {
    ClientRequest request;
    request.mutable_count_tasks()->set_run(run);
    request.mutable_count_tasks()->set_by_task(true);
    return get_counted_tasks(request_reply(request).counted_tasks());
  } catch (const Failed&) {  // the head is away
    return {};
  }
}

void RemoteEngine::cancel(const std::string& selector) {
  ClientRequest request;
  request.mutable_cancel_run()->set_run(selector);
  request.mutable_cancel_run()->set_by(requester_of(options_));
  request_reply(request);
}

std::vector<RunInfo> RemoteEngine::stop(const std::string& selector, int64_t within_ms) {
  ClientRequest request;
  request.mutable_stop_run()->set_run(selector);
  request.mutable_stop_run()->set_within_ms(within_ms);
  request.mutable_stop_run()->set_by(requester_of(options_));
  auto connection = value_or_throw(head_connector_->connect());  // others do not wait for the stop
  return stopped_runs(checked(value_or_throw(exchange(*connection, request, kGone))));
}

std::vector<ServiceInfo> RemoteEngine::services() {
  ClientRequest request;
  request.mutable_list_services();
  ServerReply reply = request_reply(request);
  std::vector<ServiceInfo> services;
  for (const auto& service : reply.service_list().services())
    services.push_back(get_service(service));
  return services;
}

void RemoteEngine::signal(const std::string& selector, const std::string& name,
                          const std::string& json) {
  ClientRequest request;
  client_protocol::SendSignal& signal = *request.mutable_send_signal();
  signal.set_run(selector);
  signal.set_name(name);
  signal.set_json(json);
  signal.set_by(requester_of(options_));
  request_reply(request);
}

PlanInfo RemoteEngine::plan(const std::string& script, const RunOptions& options) {
  Submission submission = value_or_throw(make_submission(options_, options));
  submission.script = script;
  build(submission);
  ClientRequest request;
  put_submission(submission, *request.mutable_preview_plan()->mutable_submission());
  return get_plan(request_reply(request).plan_preview());
}

uint64_t RemoteEngine::gc(uint32_t keep) {
  ClientRequest request;
  request.mutable_collect_garbage()->set_keep(keep);
  return request_reply(request).garbage_collected().freed_bytes();
}

std::string RemoteEngine::address() const {
  ClientRequest request;
  request.mutable_list_workers();
  return request_reply(request).worker_list().address();
}

std::vector<NodeInfo> RemoteEngine::nodes() const {
  ClientRequest request;
  request.mutable_list_workers();
  return get_nodes(request_reply(request).worker_list());
}

std::vector<std::string> RemoteEngine::get(const std::string& selector, const std::string& part,
                                           const std::string& directory) {
  return export_to_target(directory, "", [&](const std::string& folder) {
    auto connection = value_or_throw(head_connector_->connect());
    ClientRequest request;
    request.mutable_export_result()->set_run(selector);
    request.mutable_export_result()->set_part(part);
    if (!connection->send(request)) throw Failed(environment_error(kGone));
    return receive_export(*connection, part, folder);
  });
}

// ---- runs

std::shared_ptr<detail::RunHandle> RemoteEngine::run(const std::string& script, const Value& params,
                                                     const RunOptions& options) {
  Submission submission = value_or_throw(make_submission(options_, with_request_id(options)));
  submission.script = script;
  submission.params = params;
  Files files = build(submission);
  ClientRequest request;
  client_protocol::SubmitRun& submit = *request.mutable_submit_run();
  put_submission(submission, *submit.mutable_submission());
  submit.set_acks(true);
  return start(request, submission, files);
}

// New code is read on the machine where the run was started: this one, or the head's.
std::shared_ptr<detail::RunHandle> RemoteEngine::resume(const std::string& selector,
                                                        const RunOptions& options, bool new_code) {
  Submission submission = value_or_throw(make_submission(options_, with_request_id(options)));
  Files files;
  RunInfo before;
  if (new_code) before = fetch_info(selector, false);
  const std::string mine = path_on_machine(machine_name(), "");
  if (before.script.starts_with(mine)) {
    submission.script = before.script.substr(mine.size());
    submission.working_directory = before.directory;
    submission.params = before.params;
    files = build(submission);
  }
  ClientRequest request = resume_request(selector, submission, new_code);
  request.mutable_resume_run()->set_acks(true);
  return start(request, submission, files);
}

std::shared_ptr<detail::RunHandle> RemoteEngine::retry(const std::string& selector,
                                                       const std::string& task,
                                                       const RunOptions& options) {
  Submission submission = value_or_throw(make_submission(options_, with_request_id(options)));
  ClientRequest request;
  client_protocol::RetryTask& retry = *request.mutable_retry_task();
  retry.set_run(selector);
  retry.set_task(task);
  put_submission(submission, *retry.mutable_submission());
  retry.set_acks(true);
  return start(request, submission, {});
}

std::shared_ptr<detail::RunHandle> RemoteEngine::serve(const std::string& selector,
                                                       const RunOptions& options) {
  return start_serving(selector, false, options);
}

std::shared_ptr<detail::RunHandle> RemoteEngine::rollback(const std::string& name,
                                                          const RunOptions& options) {
  return start_serving(name, true, options);
}

std::shared_ptr<detail::RunHandle> RemoteEngine::start_serving(const std::string& selector,
                                                               bool rolls_back,
                                                               const RunOptions& options) {
  Submission submission = value_or_throw(make_submission(options_, with_request_id(options)));
  ClientRequest request = serve_request(selector, rolls_back, submission);
  request.mutable_serve_run()->set_acks(true);
  return start(request, submission, {});
}

Result<ServerReply> RemoteEngine::begin(EngineConnection& connection, const ClientRequest& request,
                                        const Files& files) const {
  auto reply = exchange(connection, request, kGone);
  if (!reply.ok() || !reply->has_missing_blobs()) return reply;
  for (const std::string& name : reply->missing_blobs().digests()) {
    Digest digest;
    bool is_digest = Digest::from_bytes(name, digest);
    auto file = files.paths.find(digest);
    if (!is_digest || file == files.paths.end())
      return error_reply(
          environment_error("the head requested a blob to which this run does not refer"));
    auto source = cluster::BlobReader::of_file(file->second, true);
    if (!send_blob<ClientRequest>(connection, digest, source).ok()) break;
  }
  return connection.receive<ServerReply>();
}

bool RemoteEngine::pause(cluster::ReconnectBackoff& backoff, const FollowedRun* followed) const {
  std::chrono::milliseconds pause(backoff.pause_ms(random_u64()));
  std::unique_lock lock(wakeup_->mutex);
  auto is_over = [&] { return wakeup_->quit || (followed != nullptr && followed->is_abandoned); };
  return !wakeup_->changed.wait_for(lock, pause, is_over);
}

std::shared_ptr<detail::RunHandle> RemoteEngine::start(const ClientRequest& request,
                                                       const Submission& submission,
                                                       const Files& files) {
  std::shared_ptr<EngineConnection> connection = value_or_throw(head_connector_->connect());
  auto reply = begin(*connection, request, files);
  int64_t until = monotonic_us() + kAskAgainMs * 1000;
  cluster::ReconnectBackoff backoff;
  while (!reply.ok() && monotonic_us() < until && pause(backoff, nullptr)) {
    auto again = head_connector_->connect();
    if (!again.ok()) continue;
    connection = std::move(*again);
    reply = begin(*connection, request, files);
  }
  if (!reply.ok())
    throw Failed(environment_error(
        fmt::format("{} ({}). If the run had begun, `flow ls` on its machine shows it",
                    reply.error().message, options_.head)));
  reply = checked(std::move(*reply));
  auto followed = std::make_shared<FollowedRun>();
  followed->id = reply->run_started().run();
  followed->submission = submission;
  followed->submission.built = nullptr;
  if (reply->run_started().has_info())
    followed->last = value_or_throw(get_run_info(reply->run_started().info()));
  auto state = std::make_shared<detail::RunHandle>();
  state->id = followed->id;
  followed->state = state;
  state->info = [this, followed] { return latest_info(*followed, true); };
  state->summary = [this, followed] { return latest_info(*followed, false); };
  state->counts = [this, followed] { return count(*followed); };
  state->counts_by_task = [this, followed] { return count_by_task(followed->id); };
  attach_controls(*state, connection);
  followers_.start([this, state, followed, connection = std::move(connection)] {
    follow(state, followed, connection);
  });
  return state;
}

void RemoteEngine::follow(const std::shared_ptr<detail::RunHandle>& state,
                          const FollowedRunPtr& followed,
                          std::shared_ptr<EngineConnection> connection) {
  uint64_t received = 0;
  DeliveredCompletions completions;
  while (!follow_connection(*state, *connection, completions, &received)) {
    connection = reconnect(state, followed, received);
    if (!connection) return state->on_end();
    bool is_new_head = received == 0;
    if (is_new_head) completions.deliver_missed(*state);
  }
}

std::shared_ptr<EngineConnection> RemoteEngine::reconnect(
    const std::shared_ptr<detail::RunHandle>& state, const FollowedRunPtr& followed,
    uint64_t& received) {
  {
    std::lock_guard lock(wakeup_->mutex);
    if (wakeup_->quit) return nullptr;
  }
  std::string leave = fmt::format("`flow resume {} --head {}`", followed->id, options_.head);
  detach_controls(*state, [wakeup = wakeup_, weak = std::weak_ptr(state), followed, leave] {
    {
      std::lock_guard lock(wakeup->mutex);
      followed->is_abandoned = true;
      wakeup->changed.notify_all();
    }
    auto state = weak.lock();
    if (state)
      state->fail(
          {ErrorKind::interrupted, fmt::format("the run {} was left while its head could not be "
                                               "reached; {} continues it once the head is back",
                                               state->id, leave)});
  });
  log::warning("disconnected from the head",
               {.run = followed->id, .detail = "the head at " + options_.head});
  state->report("warning",
                fmt::format("the head at {} can't be reached: running tasks continue, and this "
                            "client retries until the head is back. Ctrl-C leaves the run to {}",
                            options_.head, leave));
  ClientRequest request = resume_request(followed->id, followed->submission, false);
  request.mutable_resume_run()->set_acks(true);
  request.mutable_resume_run()->set_received(received);
  cluster::ReconnectBackoff backoff;
  while (pause(backoff, followed.get())) {
    bool is_rejected = false;
    auto connection = head_connector_->connect(&is_rejected);
    if (!connection.ok() && is_rejected) {
      state->fail(connection.error());
      return nullptr;
    }
    if (!connection.ok()) continue;
    auto reply = begin(**connection, request, {});
    if (!reply.ok()) continue;
    if (reply->has_error()) {
      state->fail(get_error(reply->error()));
      return nullptr;
    }
    if (!reply->run_started().continues()) received = 0;
    log::info("reconnected to the head",
              {.run = followed->id, .detail = "the head at " + options_.head});
    attach_controls(*state, *connection);
    return std::move(*connection);
  }
  return nullptr;
}

}  // namespace flow
