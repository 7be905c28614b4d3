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
#include "engine/base/log.hpp"
#include "engine/base/size_units.hpp"
#include "engine/base/throwing.hpp"
#include "engine/client/blob_frames.hpp"
#include "engine/client/remote_export.hpp"
#include "engine/submission/prebuilt_graph.hpp"

namespace flow {

namespace {

constexpr size_t kClientsMax = 256;
constexpr int64_t kRequestWithinMs = 10'000;  // an idle connection is closed after this
constexpr std::chrono::seconds kReadWithin{2};

bool starts_run(const ClientRequest& request) {
  return request.has_submit_run() || request.has_resume_run() || request.has_retry_task() ||
         request.has_serve_run();
}

Submission checked_submission(bool is_given, const client_protocol::Submission& submission) {
  if (!is_given) throw Failed(user_error("a request without a body"));
  return value_or_throw(get_submission(submission));
}

template <typename Request>
Submission submission_in(const Request& request) {
  return checked_submission(request.has_submission(), request.submission());
}

Submission submission_of(const ClientRequest& request) {
  if (request.has_submit_run()) return submission_in(request.submit_run());
  if (request.has_resume_run()) return submission_in(request.resume_run());
  if (request.has_serve_run()) return submission_in(request.serve_run());
  return submission_in(request.retry_task());
}

/// Whether the client acknowledges replies. False for a kind that is not set, as all its fields.
bool has_acks(const ClientRequest& request) {
  return request.submit_run().acks() || request.resume_run().acks() ||
         request.retry_task().acks() || request.serve_run().acks();
}

/// Sends the reply, or an error if it is too large for one message.
void send_whole(EngineConnection& connection, const ServerReply& reply) {
  if (connection.send(reply) || reply.ByteSizeLong() <= kClientFrameMax) return;
  connection.send(error_reply(environment_error(fmt::format(
      "the answer is {} bytes, and a client takes {} ({}) at a time: ask on the machine "
      "of the process that writes the state",
      reply.ByteSizeLong(), kClientFrameMax, format_bytes(kClientFrameMax)))));
}

/// The run as it is now, in `started`; nothing if it cannot be read: the run continues all the
/// same.
void put_initial_info(EngineService& engine, client_protocol::RunStarted& started) {
  try {
    put_run_info(engine.show(started.run(), false), *started.mutable_info());
  } catch (const Failed&) {
    started.clear_info();
  }
}

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
    log::warning("client rejected", {.detail = "the writer has too many clients"});
    connection->send(error_reply(environment_error(
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
    std::string why = fmt::format(
        "the writer of this state cannot start a thread for another client ({}): try again when "
        "some have ended",
        error.code().message());
    log::warning("client rejected", {.detail = why});
    client.connection->send(error_reply(environment_error(why)));
    clients_.pop_back();
  }
}

/// If all places are in use, evicts the oldest client that has not requested anything yet, or whose
/// run has ended. False if there is none.
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

/// Counts a run from its request on: a writer that is about to end waits for the requests that it
/// has begun.
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
    auto request = connection.receive<ClientRequest>(kRequestWithinMs);
    if (!request.ok() || quit_) break;  // the client asks the next writer
    {
      std::lock_guard lock(mutex_);
      if (client.is_evicted) return;
      client.has_request = true;
    }
    try {
      if (starts_run(*request)) {
        serve_run(client, *request);
      } else if (request->has_show_run()) {
        show_run(connection, request->show_run());
      } else if (request->has_export_result()) {
        export_result(connection, request->export_result());
      } else {
        send_whole(connection, reply_to(*request, connection));
      }
    } catch (const Failed& failed) {
      connection.send(error_reply(failed.error));
    }
    if (starts_run(*request)) break;
  }
  connection.shut_down();
}

void Server::show_run(EngineConnection& connection, const client_protocol::ShowRun& request) {
  constexpr size_t kTasksInList = 10'000;
  RunInfo info = engine_.show(request.run(), request.with_tasks());
  for (size_t at = 0; at < info.tasks.size(); at += kTasksInList) {
    ServerReply tasks;
    put_tasks(info.tasks, at, kTasksInList, *tasks.mutable_task_list());
    connection.send(tasks);
  }
  ServerReply shown;
  put_run_info(info, *shown.mutable_run_shown()->mutable_info());
  shown.mutable_run_shown()->set_state_bytes(engine_.state_bytes());
  if (!connection.send(shown))
    throw Failed(
        environment_error(fmt::format("the outcome of the run {} is too large for a message to a "
                                      "client: `flow show` on the head's machine prints it",
                                      info.id)));
}

// The blobs first, each once, then the value that names them.
void Server::export_result(EngineConnection& connection,
                           const client_protocol::ExportResult& request) {
  Value value = engine_.value(request.run(), request.part());
  for (const auto& [digest, origin] : blobs_of(value)) {
    ServerReply next;
    next.mutable_next_blob()->set_digest(std::string(digest.view()));
    connection.send(next);
    if (!send_blob<ServerReply>(connection, digest, engine_.open_blob(digest, origin)).ok()) return;
  }
  ServerReply exported;
  exported.mutable_exported_value()->set_value(value_bytes(strip_origins(value)));
  if (request.part().empty()) {
    for (std::string& folder : engine_.get_folders(request.run()))
      exported.mutable_exported_value()->add_folders(std::move(folder));
  }
  connection.send(exported);
}

ServerReply Server::reply_to(const ClientRequest& request, const EngineConnection& connection) {
  auto who = [&](std::string_view said) { return connection.requester(said); };
  ServerReply reply = done_reply();
  switch (request.kind_case()) {
    case ClientRequest::kPing:
      break;
    case ClientRequest::kCancelRun:
      engine_.cancel_for(request.cancel_run().run(), who(request.cancel_run().by()));
      break;
    case ClientRequest::kStopRun:
      reply.mutable_run_stopped();
      for (const RunInfo& run :
           engine_.stop_for(request.stop_run().run(), request.stop_run().within_ms(),
                            who(request.stop_run().by())))
        put_run_info(run, *reply.mutable_run_stopped()->add_runs());
      break;
    case ClientRequest::kListServices:
      reply.mutable_service_list();
      for (const ServiceInfo& service : engine_.services())
        put_service(service, *reply.mutable_service_list()->add_services());
      break;
    case ClientRequest::kSendSignal:
      engine_.signal_for(request.send_signal().run(), request.send_signal().name(),
                         request.send_signal().json(), who(request.send_signal().by()));
      break;
    case ClientRequest::kCollectGarbage:
      reply.mutable_garbage_collected()->set_freed_bytes(
          engine_.gc(request.collect_garbage().keep()));
      break;
    case ClientRequest::kPreviewPlan:
      put_plan(engine_.plan_for(submission_in(request.preview_plan())),
               *reply.mutable_plan_preview());
      break;
    case ClientRequest::kCountTasks:
      if (request.count_tasks().by_task()) {
        put_counted_tasks(engine_.counts_by_task(request.count_tasks().run()),
                          *reply.mutable_counted_tasks());
      } else {
        put_counts(engine_.counts(request.count_tasks().run()), *reply.mutable_task_counts());
      }
      break;
    case ClientRequest::kListWorkers:
      reply.mutable_worker_list()->set_address(engine_.address());
      put_nodes(engine_.nodes(), *reply.mutable_worker_list());
      break;
    default:
      throw Failed(environment_error("the writer does not know this request"));
  }
  return reply;
}

std::unique_ptr<BlobPins::Pin> Server::receive_inputs(EngineConnection& connection,
                                                      const Submission& submission) {
  if (!submission.built) return nullptr;
  BuiltGraph built = value_or_throw(flow::accept_prebuilt_graph(*submission.built));
  std::vector<Digest> inputs = files_of(built.plan);
  auto pin = engine_.engine_loop().parts().pins.pin(inputs);
  std::vector<Digest> missing = missing_blobs(inputs, engine_.engine_loop().parts().blobs);
  if (missing.empty()) return pin;
  ServerReply reply;
  for (const Digest& digest : missing)
    reply.mutable_missing_blobs()->add_digests(std::string(digest.view()));
  connection.send(reply);
  const std::string& dir = engine_.engine_loop().parts().options.state_dir;
  for (const Digest& digest : missing)
    ok_or_throw(receive_blob<ClientRequest>(connection, digest, dir));
  return pin;
}

// A session that is abandoned is interrupting its run: the request is new when that has ended.
std::shared_ptr<ClientRunSession> Server::find(const std::string& request) {
  std::shared_ptr<ClientRunSession> found;
  {
    std::lock_guard lock(mutex_);
    auto known = sessions_.find(request);
    if (request.empty() || known == sessions_.end()) return nullptr;
    found = known->second;
  }
  if (!found->is_abandoned()) return found;
  if (found->is_detached() && !found->is_over())
    throw Failed(environment_error(fmt::format(
        "the run {} continues without this client, which was disconnected for too long: `flow "
        "show {}` where its state is shows it",
        found->run(), found->run())));
  found->wait_over();
  return nullptr;
}

std::shared_ptr<detail::RunHandle> Server::start(const ClientRequest& request,
                                                 const Submission& submission) {
  if (request.has_submit_run()) return engine_.run_for(submission);
  if (request.has_retry_task())
    return engine_.resume_for(request.retry_task().run(), request.retry_task().task(),
                              Resumption::retry, submission);
  if (request.has_serve_run())
    return engine_.serve_for(request.serve_run().run(), request.serve_run().rolls_back(),
                             submission);
  Resumption how = request.resume_run().new_code() ? Resumption::new_code : Resumption::resume;
  return engine_.resume_for(request.resume_run().run(), "", how, submission);
}

void Server::serve_run(Client& client, const ClientRequest& request) {
  Submission submission = submission_of(request);
  submission.by = client.connection->requester(submission.by);
  const std::string& name = submission.options.request;
  auto run_count = std::make_shared<ActiveRunCount>(*this);
  std::shared_ptr<ClientRunSession> session = find(name);
  bool continues = session != nullptr;
  if (!continues) {
    auto pin = receive_inputs(*client.connection, submission);
    session =
        std::make_shared<ClientRunSession>(start(request, submission), has_acks(request),
                                           submission.options.detached, submission.by, run_count);
    std::lock_guard lock(mutex_);
    sessions_.emplace(name, session);
    if (quit_) session->quit(!engine_.address().empty());
  }
  auto note = [&](std::shared_ptr<ClientRunSession> now) {
    std::lock_guard lock(mutex_);
    client.session.swap(now);
  };
  note(session);
  run_count.reset();  // the session counts the run until its end
  ServerReply reply;
  client_protocol::RunStarted& started = *reply.mutable_run_started();
  started.set_run(session->run());
  started.set_continues(continues);
  started.set_leads(!engine_.address().empty());
  if (has_acks(request)) put_initial_info(engine_, started);
  failpoint("client-before-answer");
  client.connection->send(reply);
  bool is_gone = session->serve(client.connection, continues ? request.resume_run().received() : 0);
  note(nullptr);
  if (!is_gone) return;
  session->wait_over();
  std::lock_guard lock(mutex_);
  std::erase_if(sessions_, [&](const auto& each) { return each.second == session; });
  changed_.notify_all();
}

}  // namespace flow
