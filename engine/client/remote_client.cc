#include "engine/client/remote_client.hpp"

#include <fmt/format.h>

#include <chrono>

#include "engine/base/clock.hpp"
#include "engine/base/ids.hpp"
#include "engine/base/throwing.hpp"
#include "engine/client/blob_frames.hpp"
#include "engine/client/messages.hpp"
#include "engine/client/remote_export.hpp"
#include "engine/client/run_stream.hpp"
#include "engine/cluster/session/session_options.hpp"

namespace flow {

namespace {

/// Who was asked for a run and has gone before its answer is asked again for so long; so is one
/// whose answer is all that is missing at the end.
constexpr int64_t kAskAgainMs = 30'000;

Error gone() { return environment_error("the head has gone before its answer"); }

}  // namespace

Result<std::unique_ptr<detail::EngineImpl>> RemoteEngine::open(
    const EngineOptions& options, const TransportFactory& make_transport) {
  if (!options.state.empty() || leads_cluster(options) || !options.resources.empty())
    return user_error(
        "a client of a head has no state, no workers and no resources of its own: name the head, "
        "or what is "
        "this process's own, and not both");
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
  ask_connection_.reset();
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
  submission.params = Value();  // they are in it
  submission.options.text_params.clear();
  submission.options.params_json.clear();
  return std::move(here.files);
}

// ---- questions

Result<Value> RemoteEngine::ask_over(EngineConnection& connection, const Value& request,
                                     std::vector<TaskInfo>* tasks) const {
  if (!connection.send(request)) return gone();
  while (true) {
    auto reply = connection.receive();
    FLOW_TRY(reply);
    if (tasks == nullptr || text_field(*reply, "frame") != "tasks") return reply;
    if (const Value* some = reply->find("tasks")) add_tasks(*some, *tasks);
  }
}

namespace {

Value checked(Value reply) {
  if (text_field(reply, "frame") == "error") throw Failed(error_from_value(reply));
  return reply;
}

}  // namespace

Value RemoteEngine::ask(const Value& request) const {
  std::lock_guard lock(asking_);
  if (ask_connection_) {
    auto reply = ask_over(*ask_connection_, request, nullptr);
    if (reply.ok()) return checked(std::move(*reply));
  }
  ask_connection_ = value_or_throw(head_connector_->connect());
  return checked(value_or_throw(ask_over(*ask_connection_, request, nullptr)));
}

RunInfo RemoteEngine::fetch_info(const std::string& selector, bool with_tasks) const {
  auto connection = value_or_throw(head_connector_->connect());
  std::vector<TaskInfo> tasks;
  Value reply = checked(value_or_throw(ask_over(
      *connection, request_of("info", {{"run", selector}, {"tasks", with_tasks}}), &tasks)));
  state_bytes_ = static_cast<uint64_t>(integer_field(reply, "bytes"));
  const Value* info = reply.find("info");
  RunInfo run = info_from_value(info == nullptr ? Value() : *info);
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

// While it goes on what was seen last is told where its head can't be asked. What a run that was
// left came to nobody here knows.
RunInfo RemoteEngine::latest_info(FollowedRun& followed, bool tasks) const {
  int64_t until = monotonic_us() + kAskAgainMs * 1000;
  cluster::ReconnectBackoff backoff;
  while (!followed.is_abandoned) {
    try {
      RunInfo info = fetch_info(followed.id, tasks);
      std::lock_guard lock(followed.mutex);
      followed.last = info;
      return info;
    } catch (const Failed& failed) {
      bool is_late = monotonic_us() > until;
      if (failed.error.kind != ErrorKind::environment || is_late) throw;
    }
    if (!has_ended(followed.state)) {
      std::lock_guard lock(followed.mutex);
      return followed.last;
    }
    if (!pause(backoff, &followed) && !followed.is_abandoned) throw Failed(gone());
  }
  std::lock_guard lock(followed.mutex);
  followed.last.id = followed.id;
  followed.last.status = "interrupted";
  return followed.last;
}

Counts RemoteEngine::count(FollowedRun& followed) const {
  try {
    Value reply = ask(request_of("counts", {{"run", followed.id}}));
    std::lock_guard lock(followed.mutex);
    if (const Value* counts = reply.find("counts")) followed.counts = counts_from_value(*counts);
  } catch (const Failed&) {  // the display goes on with what it had
  }
  std::lock_guard lock(followed.mutex);
  return followed.counts;
}

void RemoteEngine::cancel(const std::string& selector) {
  ask(request_of("cancel", {{"run", selector}}));
}

void RemoteEngine::signal(const std::string& selector, const std::string& name,
                          const std::string& json) {
  ask(request_of("signal", {{"run", selector}, {"name", name}, {"json", json}}));
}

PlanInfo RemoteEngine::plan(const std::string& script, const RunOptions& options) {
  Submission submission = make_submission(options_, options);
  submission.script = script;
  build(submission);
  Value reply = ask(request_of("plan", {{"submission", submission_to_value(submission)}}));
  const Value* plan = reply.find("plan");
  return plan == nullptr ? PlanInfo{} : plan_from_value(*plan);
}

uint64_t RemoteEngine::gc(uint32_t keep) {
  return static_cast<uint64_t>(
      integer_field(ask(request_of("gc", {{"keep", int64_t{keep}}})), "freed"));
}

std::string RemoteEngine::address() const {
  return text_field(ask(request_of("nodes", {})), "address");
}

std::vector<NodeInfo> RemoteEngine::nodes() const {
  Value reply = ask(request_of("nodes", {}));
  const Value* nodes = reply.find("nodes");
  return nodes == nullptr ? std::vector<NodeInfo>() : nodes_from_value(*nodes);
}

std::vector<std::string> RemoteEngine::get(const std::string& selector, const std::string& part,
                                           const std::string& directory) {
  auto connection = value_or_throw(head_connector_->connect());
  if (!connection->send(request_of("get", {{"run", selector}, {"part", part}})))
    throw Failed(gone());
  return receive_export(*connection, part, directory);
}

// ---- runs

std::shared_ptr<detail::RunHandle> RemoteEngine::run(const std::string& script, const Value& params,
                                                     const RunOptions& options) {
  Submission submission = make_submission(options_, with_request_id(options));
  submission.script = script;
  submission.params = params;
  Files files = build(submission);
  return start("run", {}, submission, files);
}

// New code is this machine's where the run was started here, and the head's own where it was there.
std::shared_ptr<detail::RunHandle> RemoteEngine::resume(const std::string& selector,
                                                        const RunOptions& options, bool new_code) {
  Submission submission = make_submission(options_, with_request_id(options));
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
  return start("resume", {{"run", selector}, {"new_code", new_code}}, submission, files);
}

std::shared_ptr<detail::RunHandle> RemoteEngine::retry(const std::string& selector,
                                                       const std::string& task,
                                                       const RunOptions& options) {
  return start("retry", {{"run", selector}, {"task", task}},
               make_submission(options_, with_request_id(options)), {});
}

/// What it answers when it has the files that it lacks. An error says that the link broke, and
/// another try may help; what no try changes comes as a head's own refusal does.
Result<Value> RemoteEngine::begin(EngineConnection& connection, const Value& request,
                                  const Files& files) const {
  if (!connection.send(request)) {
    size_t size = encode_value(request).size();
    if (size > kClientFrameMax)
      return error_to_value(user_error(fmt::format(
          "the graph and its code are {} bytes, and a head takes {} from a client: submit it "
          "beside the head",
          size, kClientFrameMax)));
    return gone();
  }
  auto reply = connection.receive();
  if (!reply.ok() || text_field(*reply, "frame") != "lacks") return reply;
  const Value* lacks = reply->find("digests");
  bool is_list = lacks != nullptr && lacks->kind() == Value::Kind::table;
  for (const Value& name : is_list ? lacks->as_table().list : std::vector<Value>()) {
    Digest digest;
    bool is_digest =
        name.kind() == Value::Kind::string && Digest::from_bytes(name.as_string(), digest);
    auto file = files.find(digest);
    if (!is_digest || file == files.end())
      return error_to_value(
          environment_error("the head asks for content that this run does not name"));
    if (!send_blob(connection, digest, cluster::BlobReader::of_file(file->second, true)).ok())
      break;
  }
  return connection.receive();
}

bool RemoteEngine::pause(cluster::ReconnectBackoff& backoff, const FollowedRun* followed) const {
  std::chrono::milliseconds pause(backoff.pause_ms(random_u64()));
  std::unique_lock lock(wakeup_->mutex);
  auto is_over = [&] { return wakeup_->quit || (followed != nullptr && followed->is_abandoned); };
  return !wakeup_->changed.wait_for(lock, pause, is_over);
}

std::shared_ptr<detail::RunHandle> RemoteEngine::start(const char* verb, Fields fields,
                                                       const Submission& submission,
                                                       const Files& files) {
  fields.emplace_back("tells", true);
  fields.emplace_back("submission", submission_to_value(submission));
  const Value request = request_of(verb, std::move(fields));
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
  checked(*reply);
  auto followed = std::make_shared<FollowedRun>();
  followed->id = text_field(*reply, "run");
  followed->submission = submission;
  followed->submission.built = nullptr;
  if (const Value* info = reply->find("info")) followed->last = info_from_value(*info);
  auto state = std::make_shared<detail::RunHandle>();
  state->id = followed->id;
  followed->state = state;
  state->info = [this, followed] { return latest_info(*followed, true); };
  state->summary = [this, followed] { return latest_info(*followed, false); };
  state->counts = [this, followed] { return count(*followed); };
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
      state->fail({ErrorKind::interrupted,
                   fmt::format("the run {} was left while its head could not be reached; {} takes "
                               "it up where that one is there again",
                               state->id, leave)});
  });
  warn(*state, fmt::format("the head at {} can't be reached: what runs goes on, and this tries "
                           "again until it is back. Ctrl-C leaves the run for {}",
                           options_.head, leave));
  Value request = request_of("resume", {{"run", followed->id},
                                        {"new_code", false},
                                        {"tells", true},
                                        {"heard", static_cast<int64_t>(received)},
                                        {"submission", submission_to_value(followed->submission)}});
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
    if (text_field(*reply, "frame") == "error") {
      state->fail(error_from_value(*reply));
      return nullptr;
    }
    if (!flag_field(*reply, "goes_on")) received = 0;
    attach_controls(*state, *connection);
    return std::move(*connection);
  }
  return nullptr;
}

}  // namespace flow
