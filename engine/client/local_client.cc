#include "engine/client/local_client.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <atomic>
#include <chrono>

#include "engine/base/throwing.hpp"
#include "engine/client/request_marks.hpp"
#include "engine/client/run_stream.hpp"
#include "engine/query/reader_impl.hpp"
#include "engine/runs/run_info.hpp"
#include "engine/submission/prepare.hpp"

namespace flow {

namespace {

// A writer that has just got the lock does not listen yet: it reads its state, which may take long
// on a slow machine. It is tried for 30 s.
constexpr int kOpenTries = 600;
constexpr int kOpenPauseMs = 50;

}  // namespace

Result<std::unique_ptr<detail::EngineImpl>> open_engine(const EngineOptions& options,
                                                        const std::string& dir,
                                                        const OpenWriter& open_writer) {
  std::string last;
  for (int attempt = 0; attempt < kOpenTries; attempt++) {
    if (attempt > 0) ::poll(nullptr, 0, kOpenPauseMs);
    auto lock = StateLock::acquire(dir);
    FLOW_TRY(lock);
    if (*lock) return open_writer(options, dir, std::move(*lock));
    auto connection = UnixConnection::connect(socket_path(dir));
    if (connection.ok() && !options.resources.empty())
      return user_error(
          fmt::format("the state `{}` has a writer, {}, which defines the resources of its "
                      "machine: give `--resource` to that process",
                      dir, lock_holder(dir)));
    if (connection.ok())
      return std::unique_ptr<detail::EngineImpl>(
          std::make_unique<LocalClientEngine>(options, dir, open_writer));
    last = connection.error().message;
  }
  return environment_error(fmt::format("the state `{}` is locked by {}, which does not answer: {}",
                                       dir, lock_holder(dir), last));
}

LocalClientEngine::~LocalClientEngine() {
  {
    std::lock_guard lock(mutex_);
    quit_ = true;
    quits_.notify_all();
    for (auto& weak : connections_) {
      if (auto connection = weak.lock()) connection->shut_down();
    }
  }
  followers_.join();
}

void LocalClientEngine::define(const std::string& name, const std::string&, NativeTask) {
  throw Failed(environment_error(
      fmt::format("the native task `{}` can't be defined: another process ({}) writes this state, "
                  "and native tasks run in the writer; give this program a state of its own",
                  name, lock_holder(dir_))));
}

void LocalClientEngine::define_operations(const std::string& name, const std::string&) {
  throw Failed(environment_error(
      fmt::format("the operations `{}` can't be defined: another process ({}) writes this state, "
                  "and reads the files of what is submitted; give this program a state of its own",
                  name, lock_holder(dir_))));
}

bool LocalClientEngine::is_writer() const {
  std::lock_guard lock(mutex_);
  return successor_ && successor_->is_writer();
}

// A writer that has ended is not an error: the next request finds another one.
std::optional<ServerReply> LocalClientEngine::query_writer(const ClientRequest& request) const {
  auto reply = send_to_writer(dir_, request);
  if (!reply.ok()) return std::nullopt;
  if (reply->has_error()) throw Failed(get_error(reply->error()));
  return std::move(*reply);
}

std::string LocalClientEngine::address() const {
  ClientRequest request;
  request.mutable_list_workers();
  auto reply = query_writer(request);
  return reply ? reply->worker_list().address() : "";
}

std::vector<NodeInfo> LocalClientEngine::nodes() const {
  ClientRequest request;
  request.mutable_list_workers();
  auto reply = query_writer(request);
  return reply ? get_nodes(reply->worker_list()) : std::vector<NodeInfo>();
}

uint64_t LocalClientEngine::state_bytes() const {
  EngineOptions options = options_;
  options.state = dir_;
  return Reader(options).state_bytes();
}

std::vector<ServiceInfo> LocalClientEngine::services() {
  EngineOptions options = options_;
  options.state = dir_;
  return Reader(options).services();
}

RunInfo LocalClientEngine::show(const std::string& selector) {
  EngineOptions options = options_;
  options.state = dir_;
  return Reader(options).show(selector);
}

std::vector<std::string> LocalClientEngine::get(const std::string& selector,
                                                const std::string& part,
                                                const std::string& directory) {
  EngineOptions options = options_;
  options.state = dir_;
  return Reader(options).get(selector, part, directory);
}

uint32_t LocalClientEngine::client_runs() const {
  std::lock_guard lock(mutex_);
  return successor_ ? successor_->client_runs() : 0;
}

void LocalClientEngine::wait_for_clients() {
  detail::EngineImpl* successor = nullptr;
  {
    std::lock_guard lock(mutex_);
    successor = successor_.get();
  }
  if (successor != nullptr) successor->wait_for_clients();
}

Submission LocalClientEngine::here(const RunOptions& options) const {
  return value_or_throw(make_submission(options_, options));
}

// A writer may end before it has replied: then the next one is asked, or this process is the next.
std::optional<ServerReply> LocalClientEngine::request_reply(
    const ClientRequest& request, std::shared_ptr<EngineConnection>& connection) {
  for (int attempt = 0; attempt < kOpenTries; attempt++) {
    if (attempt > 0) ::poll(nullptr, 0, kOpenPauseMs);
    {
      std::lock_guard lock(mutex_);
      if (successor_) return std::nullopt;
    }
    // Without the lock: to connect to a stopped writer takes long.
    auto connected = UnixConnection::connect(socket_path(dir_));
    if (connected.ok()) {
      connection = std::move(*connected);
      auto reply = exchange(*connection, request);
      if (reply.ok() && reply->has_error()) throw Failed(get_error(reply->error()));
      if (reply.ok()) return std::move(*reply);
      if (connection->is_stalled()) throw Failed(stalled_writer(dir_));
    }
    std::lock_guard lock(mutex_);
    if (successor_) return std::nullopt;
    auto state_lock = value_or_throw(StateLock::acquire(dir_));
    if (!state_lock) continue;
    successor_ = value_or_throw(open_writer_(options_, dir_, std::move(state_lock)));
    return std::nullopt;
  }
  throw Failed(environment_error(fmt::format(
      "the state `{}` is locked by {}, which does not answer", dir_, lock_holder(dir_))));
}

std::optional<ServerReply> LocalClientEngine::request_reply(const ClientRequest& request) {
  std::shared_ptr<EngineConnection> connection;
  return request_reply(request, connection);
}

detail::EngineImpl& LocalClientEngine::successor() const {
  std::lock_guard lock(mutex_);
  return *successor_;
}

std::shared_ptr<detail::RunHandle> LocalClientEngine::run(const std::string& script,
                                                          const Value& params,
                                                          const RunOptions& given) {
  RunOptions options = with_request_id(given);
  Submission submission = here(options);
  submission.script = script;
  submission.params = params;
  ClientRequest request;
  put_submission(submission, *request.mutable_submit_run()->mutable_submission());
  auto run = start(request, options);
  return run ? run : successor().run(script, params, options);
}

std::shared_ptr<detail::RunHandle> LocalClientEngine::resume(const std::string& selector,
                                                             const RunOptions& given,
                                                             bool new_code) {
  RunOptions options = with_request_id(given);
  auto run = start(resume_request(selector, here(options), new_code), options);
  return run ? run : successor().resume(selector, options, new_code);
}

std::shared_ptr<detail::RunHandle> LocalClientEngine::retry(const std::string& selector,
                                                            const std::string& task,
                                                            const RunOptions& given) {
  RunOptions options = with_request_id(given);
  ClientRequest request;
  client_protocol::RetryTask& retry = *request.mutable_retry_task();
  retry.set_run(selector);
  retry.set_task(task);
  put_submission(here(options), *retry.mutable_submission());
  auto run = start(request, options);
  return run ? run : successor().retry(selector, task, options);
}

std::shared_ptr<detail::RunHandle> LocalClientEngine::serve(const std::string& selector,
                                                            const RunOptions& given) {
  RunOptions options = with_request_id(given);
  auto run = start(serve_request(selector, false, here(options)), options);
  return run ? run : successor().serve(selector, options);
}

std::shared_ptr<detail::RunHandle> LocalClientEngine::rollback(const std::string& name,
                                                               const RunOptions& given) {
  RunOptions options = with_request_id(given);
  auto run = start(serve_request(name, true, here(options)), options);
  return run ? run : successor().rollback(name, options);
}

void LocalClientEngine::cancel(const std::string& selector) {
  ClientRequest request;
  request.mutable_cancel_run()->set_run(selector);
  request.mutable_cancel_run()->set_by(requester_of(options_));
  if (!request_reply(request)) successor().cancel(selector);
}

// A writer that executes nothing but this run may end before it has replied. No other process
// could stop the run.
std::vector<RunInfo> LocalClientEngine::stop(const std::string& selector, int64_t within_ms) {
  ClientRequest request;
  request.mutable_stop_run()->set_run(selector);
  request.mutable_stop_run()->set_within_ms(within_ms);
  request.mutable_stop_run()->set_by(requester_of(options_));
  auto reply = send_to_writer(dir_, request);
  if (reply.ok() && reply->has_error()) throw Failed(get_error(reply->error()));
  if (reply.ok()) return stopped_runs(*reply);
  RunInfo run = show(selector);
  run.tasks.clear();
  if (is_over(run.status) || run.status == "interrupted") return {run};
  throw Failed(reply.error());
}

void LocalClientEngine::signal(const std::string& selector, const std::string& name,
                               const std::string& json) {
  ClientRequest request;
  client_protocol::SendSignal& signal = *request.mutable_send_signal();
  signal.set_run(selector);
  signal.set_name(name);
  signal.set_json(json);
  signal.set_by(requester_of(options_));
  if (!request_reply(request)) successor().signal(selector, name, json);
}

PlanInfo LocalClientEngine::plan(const std::string& script, const RunOptions& options) {
  Submission submission = here(options);
  submission.script = script;
  ClientRequest request;
  put_submission(submission, *request.mutable_preview_plan()->mutable_submission());
  auto reply = request_reply(request);
  return reply ? get_plan(reply->plan_preview()) : successor().plan(script, options);
}

uint64_t LocalClientEngine::gc(uint32_t keep) {
  ClientRequest request;
  request.mutable_collect_garbage()->set_keep(keep);
  auto reply = request_reply(request);
  return reply ? reply->garbage_collected().freed_bytes() : successor().gc(keep);
}

std::shared_ptr<detail::RunHandle> LocalClientEngine::start(const ClientRequest& request,
                                                            const RunOptions& options) {
  std::shared_ptr<RequestMark> mark = value_or_throw(RequestMark::make(dir_, options.request));
  std::shared_ptr<EngineConnection> connection;
  auto reply = request_reply(request, connection);
  if (!reply) return nullptr;
  auto state = std::make_shared<detail::RunHandle>();
  state->mark = std::move(mark);
  state->id = reply->run_started().run();
  EngineOptions options_copy = options_;
  options_copy.state = dir_;
  state->info = [options_copy, id = state->id] { return Reader(options_copy).show(id); };
  state->summary = state->info;
  state->counts = [this, id = state->id]() -> Counts {
    ClientRequest query;
    query.mutable_count_tasks()->set_run(id);
    auto counted = send_to_writer(dir_, query);
    return counted.ok() && counted->has_task_counts() ? get_counts(counted->task_counts())
                                                      : Counts{};
  };
  state->counts_by_task = [this, id = state->id]() -> std::vector<CountedTask> {
    ClientRequest query;
    query.mutable_count_tasks()->set_run(id);
    query.mutable_count_tasks()->set_by_task(true);
    auto counted = send_to_writer(dir_, query);
    if (!counted.ok()) return {};
    return get_counted_tasks(counted->counted_tasks());
  };
  attach_controls(*state, connection);
  bool leads = reply->run_started().leads();
  add_connection(connection);
  followers_.start(
      [this, state, connection, leads, options] { follow(state, connection, leads, options); });
  return state;
}

bool LocalClientEngine::add_connection(const std::shared_ptr<EngineConnection>& connection) {
  std::lock_guard lock(mutex_);
  if (quit_) return false;
  std::erase_if(connections_, [](const auto& each) { return each.expired(); });
  connections_.push_back(connection);
  return true;
}

void LocalClientEngine::follow(std::shared_ptr<detail::RunHandle> state,
                               std::shared_ptr<EngineConnection> connection, bool leads,
                               const RunOptions& options) {
  // A stalled writer does not end the connection: the run continues when the writer does, and the
  // writer would interrupt the run of a client that hangs up. The handle owns the connection, which
  // owns this callback: a weak pointer avoids a cycle.
  auto warn_stalled = [this, watched = std::weak_ptr(state)] {
    if (auto followed = watched.lock()) followed->report("warning", stalled_writer(dir_).message);
  };
  connection->set_stall_handler(warn_stalled);
  DeliveredCompletions completions;
  while (!follow_connection(*state, *connection, completions, nullptr)) {
    {
      std::lock_guard lock(mutex_);
      if (quit_) return state->on_end();
    }
    if (!leads) {
      completions.deliver_missed(*state);
      return take_over(state, options);
    }
    connection = await_head(*state, options);
    if (!connection) return;
    connection->set_stall_handler(warn_stalled);
    completions.deliver_missed(*state);
  }
}

bool LocalClientEngine::has_quit_within(int64_t ms) {
  std::unique_lock lock(mutex_);
  return quits_.wait_for(lock, std::chrono::milliseconds(ms), [this] { return quit_; });
}

std::shared_ptr<EngineConnection> LocalClientEngine::await_head(detail::RunHandle& state,
                                                                const RunOptions& options) {
  constexpr int kPauseMs = 200;
  auto given_up = std::make_shared<std::atomic<bool>>(false);
  detach_controls(state, [given_up] { *given_up = true; });
  state.report(
      "warning",
      fmt::format("the head of `{}` is gone: its workers continue their tasks, and this client "
                  "waits for a new `flow head`. Ctrl-C leaves the run to `flow resume {}`",
                  dir_, state.id));
  const ClientRequest request = resume_request(state.id, here(options), false);
  while (!*given_up) {
    if (has_quit_within(kPauseMs)) break;
    // Without the lock: to connect to a stopped head takes long.
    auto connection = UnixConnection::connect(socket_path(dir_));
    if (!connection.ok()) continue;
    std::shared_ptr<EngineConnection> connected = std::move(*connection);
    if (!add_connection(connected)) break;
    auto reply = exchange(*connected, request);
    if (!reply.ok()) continue;
    if (reply->has_error()) {
      state.fail(get_error(reply->error()));
      return nullptr;
    }
    attach_controls(state, connected);
    return connected;
  }
  state.fail(
      {ErrorKind::interrupted, fmt::format("the run {} was left while its head was gone; `flow "
                                           "resume {}` continues it once a head runs again",
                                           state.id, state.id)});
  return nullptr;
}

// All clients of the dead writer do the same: the one that gets the lock writes, the others become
// its clients.
void LocalClientEngine::take_over(std::shared_ptr<detail::RunHandle> state,
                                  const RunOptions& options) {
  try {
    detail::EngineImpl* successor = nullptr;
    {
      std::lock_guard lock(mutex_);
      if (!successor_) successor_ = value_or_throw(open_engine(options_, dir_, open_writer_));
      successor = successor_.get();
    }
    RunOptions again = options;
    if (again.detached) again.serve_for_ms = RunOptions().serve_for_ms;  // as kept with the run
    auto inner = successor->resume(state->id, again, false);
    {
      std::lock_guard lock(state->mutex);
      state->info = inner->info;
      state->summary = inner->summary;
      state->counts = inner->counts;
      state->counts_by_task = inner->counts_by_task;
      state->interrupt = inner->interrupt;
      state->cancel = inner->cancel;
      state->end_serving = inner->end_serving;
    }
    while (auto event = inner->next()) state->on_event(std::move(*event));
    inner->wait_end();
    state->on_end();
  } catch (const Failed& failed) {
    state->fail(failed.error);
  }
}

}  // namespace flow
