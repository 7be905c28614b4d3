// One thread a connection; a bounded number of them, of which a silent one gives way.
#include "engine/client/server.hpp"
#include "engine/base/failpoint.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <system_error>

#include "engine/base/engine_thread.hpp"
#include "engine/client/blob_frames.hpp"
#include "engine/client/remote_export.hpp"
#include "engine/submission/prebuilt_graph.hpp"

namespace flow {

namespace {

constexpr size_t kConnectionsMax = 256;
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
    for (auto& [name, carried] : carried_) carried->quit(!engine_.address().empty());
    for (Connection& connection : connections_) connection.link->shut_down();
  }
  for (Connection& connection : connections_) connection.thread.join();
}

void Server::wait_for_clients() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return client_runs_ == 0; });
  changed_.wait_for(lock, kReadWithin, [this] { return carried_.empty(); });
}

void Server::accept_clients() {
  while (!quit_) {
    int descriptor = ::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC);
    if (descriptor < 0) {
      if (quit_) return;
      if (errno == EMFILE || errno == ENFILE) ::poll(nullptr, 0, 100);
      continue;
    }
    take_in(std::make_shared<SocketLink>(descriptor));
  }
}

void Server::take_in(std::shared_ptr<FrameLink> link) {
  std::lock_guard lock(mutex_);
  if (quit_) return;
  for (auto it = connections_.begin(); it != connections_.end();) {
    if (!it->done) {
      ++it;
      continue;
    }
    it->thread.join();
    it = connections_.erase(it);
  }
  if (!has_room()) {
    link->send(error_to_value(environment_error(
        "the writer of this state has too many clients: try again when some have ended")));
    return;
  }
  Connection& connection = connections_.emplace_back();
  connection.link = std::move(link);
  try {
    connection.thread = engine_thread([this, &connection] {
      serve(connection);
      connection.done = true;
    });
  } catch (const std::system_error& error) {
    connection.link->send(error_to_value(
        environment_error(fmt::format("the writer of this state cannot start a thread for another "
                                      "client ({}): try again when some have ended",
                                      error.code().message()))));
    connections_.pop_back();
  }
}

/// Where all places are taken, the oldest client loses its own that has asked nothing yet, or whose
/// run has ended.
bool Server::has_room() {
  auto holds = [](const Connection& connection) { return !connection.given_up; };
  if (std::ranges::count_if(connections_, holds) < static_cast<ptrdiff_t>(kConnectionsMax))
    return true;
  auto silent = std::ranges::find_if(connections_, [](const Connection& connection) {
    bool has_ended = connection.carried && connection.carried->is_over();
    return !connection.given_up && (!connection.heard || has_ended);
  });
  if (silent == connections_.end()) return false;
  silent->given_up = true;
  silent->link->shut_down();
  return true;
}

/// Counts from the request on: a writer that is about to end waits for what it has begun to do.
class Server::Counted {
 public:
  explicit Counted(Server& server) : server_(server) { server_.client_runs_++; }
  ~Counted() {
    std::lock_guard lock(server_.mutex_);
    server_.client_runs_--;
    server_.changed_.notify_all();
  }

 private:
  Server& server_;
};

void Server::serve(Connection& connection) {
  FrameLink& link = *connection.link;
  while (true) {
    auto request = link.receive(kRequestWithinMs);
    if (!request.ok() || quit_) break;  // it asks the next writer, or again
    {
      std::lock_guard lock(mutex_);
      if (connection.given_up) return;
      connection.heard = true;
    }
    bool may_ask_more = false;
    try {
      if (integer_field(*request, "version") != kLinkVersion) {
        throw Failed(environment_error(
            "the process that writes this state is another version of flow: wait until it ends"));
      }
      std::string verb = text_field(*request, "verb");
      bool is_run = verb == "run" || verb == "resume" || verb == "retry";
      may_ask_more = !is_run;
      if (is_run) {
        carry_out(connection, *request);
      } else if (verb == "info") {
        answer_info(link, *request);
      } else if (verb == "get") {
        answer_get(link, *request);
      } else {
        link.send(answer(*request));
      }
    } catch (const Failed& failed) {
      link.send(error_to_value(failed.error));
    }
    if (!may_ask_more) break;
  }
  link.shut_down();
}

// What is large goes in pieces.
void Server::answer_info(FrameLink& link, const Value& request) {
  constexpr size_t kTasksInFrame = 10'000;
  bool with_tasks = flag_field(request, "tasks");
  RunInfo info = engine_.show(text_field(request, "run"), with_tasks);
  for (size_t at = 0; at < info.tasks.size(); at += kTasksInFrame)
    link.send(
        Value::map({{"frame", "tasks"}, {"tasks", tasks_to_value(info.tasks, at, kTasksInFrame)}}));
  bool fits = link.send(Value::map({{"frame", "done"},
                                    {"info", info_to_value(info)},
                                    {"bytes", static_cast<int64_t>(engine_.state_bytes())}}));
  if (!fits)
    throw Failed(environment_error(
        fmt::format("what the run {} came to is more than goes to a client at once: `flow show` on "
                    "the head's machine prints it",
                    info.id)));
}

// The content first, each once, then the value that names it.
void Server::answer_get(FrameLink& link, const Value& request) {
  Value value = engine_.value(text_field(request, "run"), text_field(request, "part"));
  for (const auto& [digest, origin] : content_of(value)) {
    link.send(Value::map({{"frame", "comes"}, {"digest", digest.view()}}));
    if (!send_content(link, digest, engine_.open_content(digest, origin)).ok()) return;
  }
  link.send(Value::map({{"frame", "done"}, {"value", by_content(value)}}));
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

std::unique_ptr<Driver::Pin> Server::bring(FrameLink& link, const Submission& submission) {
  if (!submission.built) return nullptr;
  Built built = value_or_throw(flow::take_in(*submission.built));
  std::vector<Digest> content = files_of(built.plan);
  auto pin = engine_.driver().pin(content);
  std::vector<Digest> missing = lacking(content, engine_.driver().blobs());
  if (missing.empty()) return pin;
  std::vector<Value> names;
  for (const Digest& digest : missing) names.emplace_back(digest.view());
  link.send(Value::map({{"frame", "lacks"}, {"digests", Value::list(std::move(names))}}));
  for (const Digest& digest : missing)
    ok_or_throw(receive_content(link, digest, engine_.driver().options().state_dir));
  return pin;
}

/// Of a client that is back; one that nobody waits for any more asks anew.
std::shared_ptr<Carried> Server::find(const std::string& request) {
  std::shared_ptr<Carried> found;
  {
    std::lock_guard lock(mutex_);
    auto known = carried_.find(request);
    if (request.empty() || known == carried_.end()) return nullptr;
    found = known->second;
  }
  if (!found->is_left()) return found;
  found->wait_over();
  return nullptr;
}

std::shared_ptr<Carried> Server::start(const Value& request, const Submission& submission,
                                       std::shared_ptr<Counted> counted) {
  std::string verb = text_field(request, "verb");
  std::shared_ptr<detail::RunState> run;
  if (verb == "run") {
    run = engine_.run_for(submission);
  } else {
    run = engine_.take_up(text_field(request, "run"), text_field(request, "task"),
                          flag_field(request, "new_code"), submission);
  }
  return std::make_shared<Carried>(std::move(run), flag_field(request, "tells"),
                                   std::move(counted));
}

/// Nothing where that can't be had: the run goes on all the same.
Value Server::first_look(const std::string& run) {
  try {
    return info_to_value(engine_.show(run, false));
  } catch (const Failed&) {
    return Value();
  }
}

void Server::carry_out(Connection& connection, const Value& request) {
  const Value* body = request.find("submission");
  Submission submission = value_or_throw(submission_from_value(body == nullptr ? Value() : *body));
  const std::string& name = submission.options.request;
  auto counted = std::make_shared<Counted>(*this);
  std::shared_ptr<Carried> carried = find(name);
  bool goes_on = carried != nullptr;
  if (!goes_on) {
    auto pin = bring(*connection.link, submission);
    carried = start(request, submission, counted);
    std::lock_guard lock(mutex_);
    carried_.emplace(name, carried);
    if (quit_) carried->quit(!engine_.address().empty());
  }
  auto note = [&](std::shared_ptr<Carried> now) {
    std::lock_guard lock(mutex_);
    connection.carried.swap(now);
  };
  note(carried);
  counted.reset();  // it is counted until its end
  Value info = flag_field(request, "tells") ? first_look(carried->run()) : Value();
  failpoint("client-before-answer");
  connection.link->send(Value::map({{"frame", "started"},
                                    {"run", carried->run()},
                                    {"goes_on", goes_on},
                                    {"info", std::move(info)},
                                    {"leads", !engine_.address().empty()}}));
  auto heard = static_cast<uint64_t>(goes_on ? integer_field(request, "heard") : 0);
  bool is_gone = carried->serve(connection.link, heard);
  note(nullptr);
  if (!is_gone) return;
  carried->wait_over();
  std::lock_guard lock(mutex_);
  std::erase_if(carried_, [&](const auto& each) { return each.second == carried; });
  changed_.notify_all();
}

}  // namespace flow
