// One thread a connection; a bounded number of them, of which a silent one gives way.
#include "engine/driver/server.hpp"
#include "engine/base/failpoint.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "engine/base/engine_thread.hpp"
#include "engine/driver/local.hpp"

namespace flow {

namespace {

constexpr size_t kConnectionsMax = 256;
constexpr int64_t kRequestWithinMs = 10'000;  // a client asks as soon as it is connected

Value done_frame() { return Value::map({{"frame", "done"}}); }

}  // namespace

Result<std::unique_ptr<Server>> Server::start(LocalEngine& engine, const std::string& state_dir) {
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
  for (Connection& connection : connections_) connection.link->shut_down();
  for (Connection& connection : connections_) connection.thread.join();
}

void Server::wait_for_clients() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return client_runs_ == 0; });
}

void Server::accept_clients() {
  while (!quit_) {
    int descriptor = ::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC);
    if (descriptor < 0) {
      if (quit_) return;
      if (errno == EMFILE || errno == ENFILE) ::poll(nullptr, 0, 100);
      continue;
    }
    std::lock_guard lock(mutex_);
    for (auto it = connections_.begin(); it != connections_.end();) {
      if (!it->done) {
        ++it;
        continue;
      }
      it->thread.join();
      it = connections_.erase(it);
    }
    auto link = std::make_unique<SocketLink>(descriptor);
    if (!has_room()) {
      link->send(error_to_value(environment_error(
          "the writer of this state has too many clients; try again when some ended")));
      continue;
    }
    Connection& connection = connections_.emplace_back();
    connection.link = std::move(link);
    connection.thread = engine_thread([this, &connection] {
      serve(connection);
      connection.done = true;
    });
  }
}

/// Where all places are taken, the oldest client that has asked nothing yet loses its own.
bool Server::has_room() {
  auto holds = [](const Connection& connection) { return !connection.given_up; };
  if (std::ranges::count_if(connections_, holds) < static_cast<ptrdiff_t>(kConnectionsMax))
    return true;
  auto silent = std::ranges::find_if(connections_, [](const Connection& connection) {
    return !connection.given_up && !connection.heard;
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
  auto request = connection.link->receive(kRequestWithinMs);
  if (!request.ok() || quit_) return connection.link->shut_down();  // it asks the next writer
  {
    std::lock_guard lock(mutex_);
    if (connection.given_up) return;
    connection.heard = true;
  }
  try {
    if (integer_field(*request, "version") != kLinkVersion) {
      throw Failed(environment_error(
          "the process that writes this state is another version of flow: wait until it ends"));
    }
    std::string verb = text_field(*request, "verb");
    if (verb == "run" || verb == "resume" || verb == "retry") {
      Counted counted(*this);
      carry_out(connection, *request);
    } else {
      connection.link->send(answer(*request));
    }
  } catch (const Failed& failed) {
    connection.link->send(error_to_value(failed.error));
  }
  connection.link->shut_down();
}

Value Server::answer(const Value& request) {
  std::string verb = text_field(request, "verb");
  std::string run = text_field(request, "run");
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

void Server::carry_out(Connection& connection, const Value& request) {
  const Value* body = request.find("submission");
  Submission submission = value_or_throw(submission_from_value(body == nullptr ? Value() : *body));
  std::string verb = text_field(request, "verb");
  std::shared_ptr<detail::RunState> run;
  if (verb == "run") {
    run = engine_.run_for(submission);
  } else {
    run = engine_.take_up(text_field(request, "run"), text_field(request, "task"),
                          flag_field(request, "new_code"), submission);
  }
  failpoint("client-before-answer");
  connection.link->send(
      Value::map({{"frame", "started"}, {"run", run->id}, {"leads", !engine_.address().empty()}}));
  std::thread listener = engine_thread([&] {
    while (true) {
      auto frame = connection.link->receive();
      if (!frame.ok()) break;
      std::string asked = text_field(*frame, "verb");
      if (asked == "interrupt") run->interrupt(flag_field(*frame, "kill"));
      if (asked == "cancel") run->cancel();
      if (asked == "end_serving") run->end_serving();
    }
    // The client's death interrupts its run; nothing where it has ended. What workers run goes on
    // when their head ends, and the client finds the next one.
    if (quit_ && !engine_.address().empty()) return run->on_end();
    run->interrupt(false);
  });
  while (auto event = run->next()) {
    if (!connection.link->send(event_to_value(*event))) break;
  }
  bool failed = false;
  try {
    run->wait_end();
  } catch (const Failed& failure) {
    failed = true;
    connection.link->send(error_to_value(failure.error));
  }
  if (!failed && !quit_) connection.link->send(Value::map({{"frame", "end"}}));
  connection.link->shut_down();
  listener.join();
}

}  // namespace flow
