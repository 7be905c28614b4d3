// One thread a connection; a bounded number of them, of which a silent one gives way.
#include "engine/client/server.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>

#include "engine/base/engine_thread.hpp"
#include "engine/base/failpoint.hpp"
#include "engine/base/throwing.hpp"
#include "engine/client/blob_frames.hpp"
#include "engine/client/remote_export.hpp"
#include "engine/submission/prebuilt_graph.hpp"

namespace flow {

namespace {

constexpr size_t kClientsMax = 256;
constexpr int64_t kRequestWithinMs = 10'000;    // a client asks as soon as it is connected
constexpr std::chrono::seconds kReadWithin{2};  // a client that ends reads the result of its run

Value done_frame() { return Value::map({{"frame", "done"}}); }

}  // namespace

Result<std::unique_ptr<Server>> Server::start(EngineService& engine, const std::string& state_dir) {
  std::string path = socket_path(state_dir);
  auto descriptor = listen_at(path);
  FLOW_TRY(descriptor);
  std::unique_ptr<Server> server(new Server(engine, *descriptor, path));
  Server* self = server.get();
  server->thread_ = engine_thread([self] { self->accept_clients(); });
  return server;
}

Server::~Server() {
  quit_ = true;
  ::shutdown(descriptor_, SHUT_RDWR);
  if (thread_.joinable()) thread_.join();
  ::close(descriptor_);
  ::unlink(path_.c_str());
  {
    std::lock_guard lock(mutex_);
    for (auto& [name, session] : sessions_) session->quit(!engine_.address().empty());
    for (Client& client : clients_) client.connection->shut_down();
  }
  for (Client& client : clients_) client.thread.join();
}

void Server::wait_for_clients() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return client_runs_ == 0; });
  changed_.wait_for(lock, kReadWithin, [this] { return sessions_.empty(); });
}

void Server::accept_clients() {
  while (!quit_) {
    int descriptor = ::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC);
    if (descriptor < 0) {
      if (quit_) return;
      if (errno == EMFILE || errno == ENFILE) ::poll(nullptr, 0, 100);
      continue;
    }
    accept(std::make_shared<UnixConnection>(descriptor));
  }
}

void Server::accept(std::shared_ptr<EngineConnection> connection) {
  std::lock_guard lock(mutex_);
  if (quit_) return;
  for (auto it = clients_.begin(); it != clients_.end();) {
    if (!it->done) {
      ++it;
      continue;
    }
    it->thread.join();
    it = clients_.erase(it);
  }
  if (!ensure_capacity()) {
    connection->send(error_to_value(environment_error(
        "the writer of this state has too many clients: try again when some have ended")));
    return;
  }
  Client& client = clients_.emplace_back();
  client.connection = std::move(connection);
  try {
    client.thread = engine_thread([this, &client] {
      serve(client);
      client.done = true;
    });
  } catch (const std::system_error& error) {
    client.connection->send(error_to_value(
        environment_error(fmt::format("the writer of this state cannot start a thread for another "
                                      "client ({}): try again when some have ended",
                                      error.code().message()))));
    clients_.pop_back();
  }
}

/// Where all places are taken, the oldest client loses its own that has asked nothing yet, or whose
/// run has ended.
bool Server::ensure_capacity() {
  auto holds = [](const Client& client) { return !client.is_evicted; };
  if (std::ranges::count_if(clients_, holds) < static_cast<ptrdiff_t>(kClientsMax)) return true;
  auto idle = std::ranges::find_if(clients_, [](const Client& client) {
    bool has_ended = client.session && client.session->is_over();
    return !client.is_evicted && (!client.has_request || has_ended);
  });
  if (idle == clients_.end()) return false;
  idle->is_evicted = true;
  idle->connection->shut_down();
  return true;
}

/// Counts from the request on: a writer that is about to end waits for what it has begun to do.
class Server::ActiveRunCount {
 public:
  explicit ActiveRunCount(Server& server) : server_(server) { server_.client_runs_++; }
  ~ActiveRunCount() {
    std::lock_guard lock(server_.mutex_);
    server_.client_runs_--;
    server_.changed_.notify_all();
  }

 private:
  Server& server_;
};

void Server::serve(Client& client) {
  EngineConnection& connection = *client.connection;
  while (true) {
    auto request = connection.receive(kRequestWithinMs);
    if (!request.ok() || quit_) break;  // it asks the next writer, or again
    {
      std::lock_guard lock(mutex_);
      if (client.is_evicted) return;
      client.has_request = true;
    }
    bool may_ask_more = false;
    try {
      if (integer_field(*request, "version") != kClientProtocolVersion) {
        throw Failed(environment_error(
            "the process that writes this state is another version of flow: wait until it ends"));
      }
      std::string verb = text_field(*request, "verb");
      bool is_run = verb == "run" || verb == "resume" || verb == "retry";
      may_ask_more = !is_run;
      if (is_run) {
        serve_run(client, *request);
      } else if (verb == "info") {
        answer_info(connection, *request);
      } else if (verb == "get") {
        answer_get(connection, *request);
      } else {
        connection.send(answer(*request));
      }
    } catch (const Failed& failed) {
      connection.send(error_to_value(failed.error));
    }
    if (!may_ask_more) break;
  }
  connection.shut_down();
}

// What is large goes in pieces.
void Server::answer_info(EngineConnection& connection, const Value& request) {
  constexpr size_t kTasksInFrame = 10'000;
  bool with_tasks = flag_field(request, "tasks");
  RunInfo info = engine_.show(text_field(request, "run"), with_tasks);
  for (size_t at = 0; at < info.tasks.size(); at += kTasksInFrame)
    connection.send(
        Value::map({{"frame", "tasks"}, {"tasks", tasks_to_value(info.tasks, at, kTasksInFrame)}}));
  bool fits = connection.send(Value::map({{"frame", "done"},
                                          {"info", info_to_value(info)},
                                          {"bytes", static_cast<int64_t>(engine_.state_bytes())}}));
  if (!fits)
    throw Failed(environment_error(
        fmt::format("what the run {} came to is more than goes to a client at once: `flow show` on "
                    "the head's machine prints it",
                    info.id)));
}

// The content first, each once, then the value that names it.
void Server::answer_get(EngineConnection& connection, const Value& request) {
  Value value = engine_.value(text_field(request, "run"), text_field(request, "part"));
  for (const auto& [digest, origin] : blobs_of(value)) {
    connection.send(Value::map({{"frame", "comes"}, {"digest", digest.view()}}));
    if (!send_blob(connection, digest, engine_.open_blob(digest, origin)).ok()) return;
  }
  connection.send(Value::map({{"frame", "done"}, {"value", strip_origins(value)}}));
}

Value Server::answer(const Value& request) {
  std::string verb = text_field(request, "verb");
  std::string run = text_field(request, "run");
  if (verb == "ping") return done_frame();
  if (verb == "cancel") {
    engine_.cancel(run);
    return done_frame();
  }
  if (verb == "signal") {
    engine_.signal(run, text_field(request, "name"), text_field(request, "json"));
    return done_frame();
  }
  if (verb == "gc") {
    uint64_t freed = engine_.gc(static_cast<uint32_t>(integer_field(request, "keep")));
    return Value::map({{"frame", "done"}, {"freed", static_cast<int64_t>(freed)}});
  }
  if (verb == "plan") {
    const Value* body = request.find("submission");
    Submission submission =
        value_or_throw(submission_from_value(body == nullptr ? Value() : *body));
    return Value::map({{"frame", "done"}, {"plan", plan_to_value(engine_.plan_for(submission))}});
  }
  if (verb == "counts") {
    return Value::map({{"frame", "done"}, {"counts", counts_to_value(engine_.counts(run))}});
  }
  if (verb == "nodes") {
    return Value::map({{"frame", "done"},
                       {"address", engine_.address()},
                       {"nodes", nodes_to_value(engine_.nodes())}});
  }
  throw Failed(environment_error("the writer does not know the request `" + verb + "`"));
}

std::unique_ptr<BlobPins::Pin> Server::receive_inputs(EngineConnection& connection,
                                                        const Submission& submission) {
  if (!submission.built) return nullptr;
  BuiltGraph built = value_or_throw(flow::accept_prebuilt_graph(*submission.built));
  std::vector<Digest> inputs = files_of(built.plan);
  auto pin = engine_.engine_loop().pins().pin(inputs);
  std::vector<Digest> missing = missing_blobs(inputs, engine_.engine_loop().blobs());
  if (missing.empty()) return pin;
  std::vector<Value> names;
  for (const Digest& digest : missing) names.emplace_back(digest.view());
  connection.send(Value::map({{"frame", "lacks"}, {"digests", Value::list(std::move(names))}}));
  for (const Digest& digest : missing)
    ok_or_throw(receive_blob(connection, digest, engine_.engine_loop().options().state_dir));
  return pin;
}

/// Of a client that is back; one that nobody waits for any more asks anew.
std::shared_ptr<ClientRunSession> Server::find(const std::string& request) {
  std::shared_ptr<ClientRunSession> found;
  {
    std::lock_guard lock(mutex_);
    auto known = sessions_.find(request);
    if (request.empty() || known == sessions_.end()) return nullptr;
    found = known->second;
  }
  if (!found->is_abandoned()) return found;
  found->wait_over();
  return nullptr;
}

std::shared_ptr<ClientRunSession> Server::start(const Value& request, const Submission& submission,
                                                std::shared_ptr<ActiveRunCount> run_count) {
  std::string verb = text_field(request, "verb");
  std::shared_ptr<detail::RunHandle> run;
  if (verb == "run") {
    run = engine_.run_for(submission);
  } else {
    run = engine_.resume_for(text_field(request, "run"), text_field(request, "task"),
                             flag_field(request, "new_code"), submission);
  }
  return std::make_shared<ClientRunSession>(std::move(run), flag_field(request, "tells"),
                                            std::move(run_count));
}

/// Nothing where that can't be had: the run goes on all the same.
Value Server::initial_info(const std::string& run) {
  try {
    return info_to_value(engine_.show(run, false));
  } catch (const Failed&) {
    return Value();
  }
}

void Server::serve_run(Client& client, const Value& request) {
  const Value* body = request.find("submission");
  Submission submission = value_or_throw(submission_from_value(body == nullptr ? Value() : *body));
  const std::string& name = submission.options.request;
  auto run_count = std::make_shared<ActiveRunCount>(*this);
  std::shared_ptr<ClientRunSession> session = find(name);
  bool goes_on = session != nullptr;
  if (!goes_on) {
    auto pin = receive_inputs(*client.connection, submission);
    session = start(request, submission, run_count);
    std::lock_guard lock(mutex_);
    sessions_.emplace(name, session);
    if (quit_) session->quit(!engine_.address().empty());
  }
  auto note = [&](std::shared_ptr<ClientRunSession> now) {
    std::lock_guard lock(mutex_);
    client.session.swap(now);
  };
  note(session);
  run_count.reset();  // it is counted until its end
  Value info = flag_field(request, "tells") ? initial_info(session->run()) : Value();
  failpoint("client-before-answer");
  client.connection->send(Value::map({{"frame", "started"},
                                      {"run", session->run()},
                                      {"goes_on", goes_on},
                                      {"info", std::move(info)},
                                      {"leads", !engine_.address().empty()}}));
  auto acked = static_cast<uint64_t>(goes_on ? integer_field(request, "heard") : 0);
  bool is_gone = session->serve(client.connection, acked);
  note(nullptr);
  if (!is_gone) return;
  session->wait_over();
  std::lock_guard lock(mutex_);
  std::erase_if(sessions_, [&](const auto& each) { return each.second == session; });
  changed_.notify_all();
}

}  // namespace flow
