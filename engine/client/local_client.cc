// Requests to the writer, events back; and the take-over.
#include "engine/client/local_client.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <atomic>
#include <chrono>

#include "engine/base/throwing.hpp"
#include "engine/client/request_marks.hpp"
#include "engine/client/run_stream.hpp"
#include "engine/query/reader_impl.hpp"

namespace flow {

namespace {

// A writer that just took the lock is not listening yet: it reads its state, which on a busy or a
// slow machine takes its time. So it is asked for 30 s.
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
      return user_error(fmt::format(
          "the state `{}` has a writer, {}, which says what its machine has: give the resources to "
          "that one",
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

std::optional<Value> LocalClientEngine::query_writer(const Value& request) const {
  auto answer = ask_writer(dir_, request);
  return answer.ok() ? std::optional(std::move(*answer)) : std::nullopt;
}

std::string LocalClientEngine::address() const {
  auto answer = query_writer(request_of("nodes", {}));
  return answer ? text_field(*answer, "address") : "";
}

std::vector<NodeInfo> LocalClientEngine::nodes() const {
  auto answer = query_writer(request_of("nodes", {}));
  const Value* nodes = answer ? answer->find("nodes") : nullptr;
  return nodes == nullptr ? std::vector<NodeInfo>() : nodes_from_value(*nodes);
}

uint64_t LocalClientEngine::state_bytes() const {
  EngineOptions options = options_;
  options.state = dir_;
  return Reader(options).state_bytes();
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
  return make_submission(options_, options);
}

// A writer may end between the look at its lock and its answer: then we ask who came after it, or
// are that ourselves.
std::optional<Value> LocalClientEngine::ask(const Value& request,
                                            std::shared_ptr<EngineConnection>& connection) {
  for (int attempt = 0; attempt < kOpenTries; attempt++) {
    if (attempt > 0) ::poll(nullptr, 0, kOpenPauseMs);
    {
      std::lock_guard lock(mutex_);
      if (successor_) return std::nullopt;
    }
    // Not under the lock: a writer that is stopped lets this wait.
    auto connected = UnixConnection::connect(socket_path(dir_));
    if (connected.ok()) {
      connection = std::move(*connected);
      auto reply = connection->send(request)
                       ? connection->receive()
                       : Result<Value>(environment_error("it does not listen"));
      if (reply.ok() && text_field(*reply, "frame") == "error")
        throw Failed(error_from_value(*reply));
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

std::optional<Value> LocalClientEngine::ask(const Value& request) {
  std::shared_ptr<EngineConnection> connection;
  return ask(request, connection);
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
  auto run = start(request_of("run", {{"submission", submission_to_value(submission)}}), options);
  return run ? run : successor().run(script, params, options);
}

std::shared_ptr<detail::RunHandle> LocalClientEngine::resume(const std::string& selector,
                                                             const RunOptions& given,
                                                             bool new_code) {
  RunOptions options = with_request_id(given);
  auto run = start(request_of("resume", {{"run", selector},
                                         {"new_code", new_code},
                                         {"submission", submission_to_value(here(options))}}),
                   options);
  return run ? run : successor().resume(selector, options, new_code);
}

std::shared_ptr<detail::RunHandle> LocalClientEngine::retry(const std::string& selector,
                                                            const std::string& task,
                                                            const RunOptions& given) {
  RunOptions options = with_request_id(given);
  auto run = start(request_of("retry", {{"run", selector},
                                        {"task", task},
                                        {"submission", submission_to_value(here(options))}}),
                   options);
  return run ? run : successor().retry(selector, task, options);
}

void LocalClientEngine::cancel(const std::string& selector) {
  if (!ask(request_of("cancel", {{"run", selector}}))) successor().cancel(selector);
}

void LocalClientEngine::signal(const std::string& selector, const std::string& name,
                               const std::string& json) {
  if (!ask(request_of("signal", {{"run", selector}, {"name", name}, {"json", json}})))
    successor().signal(selector, name, json);
}

PlanInfo LocalClientEngine::plan(const std::string& script, const RunOptions& options) {
  Submission submission = here(options);
  submission.script = script;
  auto reply = ask(request_of("plan", {{"submission", submission_to_value(submission)}}));
  if (!reply) return successor().plan(script, options);
  const Value* plan = reply->find("plan");
  return plan == nullptr ? PlanInfo{} : plan_from_value(*plan);
}

uint64_t LocalClientEngine::gc(uint32_t keep) {
  auto reply = ask(request_of("gc", {{"keep", int64_t{keep}}}));
  return reply ? static_cast<uint64_t>(integer_field(*reply, "freed")) : successor().gc(keep);
}

std::shared_ptr<detail::RunHandle> LocalClientEngine::start(Value request,
                                                            const RunOptions& options) {
  std::shared_ptr<RequestMark> mark = value_or_throw(RequestMark::make(dir_, options.request));
  std::shared_ptr<EngineConnection> connection;
  auto reply = ask(request, connection);
  if (!reply) return nullptr;
  auto state = std::make_shared<detail::RunHandle>();
  state->mark = std::move(mark);
  state->id = text_field(*reply, "run");
  EngineOptions options_copy = options_;
  options_copy.state = dir_;
  state->info = [options_copy, id = state->id] { return Reader(options_copy).show(id); };
  state->summary = state->info;
  state->counts = [this, id = state->id]() -> Counts {
    auto answer = query_writer(request_of("counts", {{"run", id}}));
    const Value* counts = answer ? answer->find("counts") : nullptr;
    return counts == nullptr ? Counts{} : counts_from_value(*counts);
  };
  attach_controls(*state, connection);
  bool leads = flag_field(*reply, "leads");
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
  // It goes on where its writer does, and a client that left would have it stopped. The state holds
  // the link, and the link this.
  auto warn_stalled = [this, watched = std::weak_ptr(state)] {
    if (auto followed = watched.lock()) warn(*followed, stalled_writer(dir_).message);
  };
  connection->on_peer_stalled(warn_stalled);
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
    connection->on_peer_stalled(warn_stalled);
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
  warn(state,
       fmt::format(
           "the head of `{}` is gone: its workers go on with what they run, and this waits until a "
           "`flow head` is there again. Ctrl-C leaves the run for `flow resume {}`",
           dir_, state.id));
  Value request = request_of(
      "resume",
      {{"run", state.id}, {"new_code", false}, {"submission", submission_to_value(here(options))}});
  while (!*given_up) {
    if (has_quit_within(kPauseMs)) break;
    // Not under the lock: a head that is stopped and has a full backlog lets this wait.
    auto connection = UnixConnection::connect(socket_path(dir_));
    if (!connection.ok()) continue;
    std::shared_ptr<EngineConnection> connected = std::move(*connection);
    if (!add_connection(connected)) break;
    auto reply = connected->send(request) ? connected->receive()
                                          : Result<Value>(environment_error("it is gone"));
    if (!reply.ok()) continue;
    if (text_field(*reply, "frame") == "error") {
      state.fail(error_from_value(*reply));
      return nullptr;
    }
    attach_controls(state, connected);
    return connected;
  }
  state.fail({ErrorKind::interrupted,
              fmt::format("the run {} was left while its head was gone; `flow resume {}` takes it "
                          "up where that one runs again",
                          state.id, state.id)});
  return nullptr;
}

// The writer died with our run in it. Whoever gets the lock first writes; the others become its
// clients.
void LocalClientEngine::take_over(std::shared_ptr<detail::RunHandle> state,
                                  const RunOptions& options) {
  try {
    detail::EngineImpl* successor = nullptr;
    {
      std::lock_guard lock(mutex_);
      if (!successor_) successor_ = value_or_throw(open_engine(options_, dir_, open_writer_));
      successor = successor_.get();
    }
    auto inner = successor->resume(state->id, options, false);
    {
      std::lock_guard lock(state->mutex);
      state->info = inner->info;
      state->summary = inner->summary;
      state->counts = inner->counts;
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
