// A client of the process that writes a state.
#include "engine/client/local_client.hpp"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <thread>

#include "engine/api/local_engine.hpp"
#include "engine/client/connection.hpp"
#include "engine/client/run_stream.hpp"
#include "tests/api/temp_folder.hpp"
#include "tests/client/raw_frames.hpp"

using namespace flow;

namespace {

/// Delays connections to one unix socket, like a full backlog.
class ConnectLatch {
 public:
  void close(const std::string& path) {
    std::lock_guard lock(mutex_);
    path_ = path;
  }
  void open() {
    std::lock_guard lock(mutex_);
    path_.clear();
    changed_.notify_all();
  }
  void pass(const std::string& path) {
    std::unique_lock lock(mutex_);
    if (path_.empty() || path != path_) return;
    waiting_++;
    changed_.notify_all();
    changed_.wait(lock, [&] { return path != path_; });
    waiting_--;
  }
  void await_connection() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string path_;  // empty: connections are not delayed
  int waiting_ = 0;
};

ConnectLatch& latch() {
  static ConnectLatch latch;
  return latch;
}

}  // namespace

// Replaces the C library's function in the whole program.
extern "C" int connect(int descriptor, const sockaddr* address, socklen_t size) {
  if (address->sa_family == AF_UNIX && size > sizeof address->sa_family)
    latch().pass(reinterpret_cast<const sockaddr_un*>(address)->sun_path);
  return static_cast<int>(::syscall(SYS_connect, descriptor, address, size));
}

TEST_CASE("a client that waits for a head's socket still answers its other callers") {
  test::TempFolder temp;
  std::string state = temp.options().state, path = socket_path(state);
  std::filesystem::create_directories(state);
  auto listening = listen_at(path);
  REQUIRE(listening.ok());
  auto engine =
      std::make_unique<LocalClientEngine>(temp.options(), state, LocalEngine::open_writer);
  std::promise<void> latched;
  std::thread head([&] {
    UnixConnection client(::accept(*listening, nullptr, nullptr));
    (void)client.receive<ClientRequest>();
    ServerReply reply;
    reply.mutable_run_started()->set_run("a-run");
    reply.mutable_run_started()->set_leads(true);
    client.send(reply);
    latched.get_future().wait();
  });
  auto run = engine->run("pipeline.lua", Value(), {});
  REQUIRE(run->id == "a-run");
  latch().close(path);
  latched.set_value();
  head.join();
  latch().await_connection();
  auto is_writer = std::async(std::launch::async, [&] { return engine->is_writer(); });
  bool is_answered = is_writer.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
  latch().open();
  CHECK(is_answered);
  CHECK_FALSE(is_writer.get());
  engine.reset();
  ::close(*listening);
}

TEST_CASE("a writer of version 1 is an error at once, even if it closed before the whole request") {
  test::TempFolder temp;
  std::string state = temp.options().state;
  std::filesystem::create_directories(state);
  auto listening = listen_at(socket_path(state));
  REQUIRE(listening.ok());
  int requests = 0;
  std::thread writer([&] {
    for (int client; (client = ::accept(*listening, nullptr, nullptr)) >= 0; ::close(client)) {
      requests++;
      (void)test::receive_raw(client);
      test::send_raw(client, encode_value(Value::map({{"frame", "error"},
                                                      {"kind", int64_t{3}},
                                                      {"message", "another version of flow"}})));
      ::shutdown(client, SHUT_RDWR);
    }
  });
  LocalClientEngine engine(temp.options(), state, LocalEngine::open_writer);
  auto error_of = [](auto call) {
    try {
      call();
    } catch (const Failed& failed) {
      return failed.error;
    }
    return Error{ErrorKind::user, "no error"};
  };
  Error error = error_of([&] { engine.run("pipeline.lua", Value(), {}); });
  CHECK(error.kind == ErrorKind::environment);
  CHECK(error.message == test::version_1_error());
  std::string large(size_t{8} << 20, 'x');
  CHECK(error_of([&] { engine.signal("last", "name", large); }).message == test::version_1_error());
  CHECK(error_of([&] { engine.gc(1); }).message == test::version_1_error());
  CHECK(error_of([&] { (void)engine.nodes(); }).message == test::version_1_error());
  CHECK(error_of([&] { (void)engine.address(); }).message == test::version_1_error());
  ClientRequest request;
  request.mutable_list_workers();
  auto reply = send_to_writer(state, request);
  REQUIRE(reply.ok());
  CHECK(reply->error().message() == test::version_1_error());
  ::shutdown(*listening, SHUT_RDWR);
  writer.join();
  CHECK(requests == 6);
  ::close(*listening);
}

TEST_CASE("a request that is too large is an error that names its size and the limit") {
  test::TempFolder temp;
  Engine writer(temp.options());
  LocalClientEngine client(temp.options(), temp.options().state, LocalEngine::open_writer);
  const std::string large(size_t{kClientFrameMax} + 1, 'x');
  CHECK_THROWS_WITH(client.signal("last", "go", large),
                    Catch::Matchers::Contains("the request is 671088") &&
                        Catch::Matchers::Contains("a client may send 67108864 (64 MiB): "
                                                  "pass large values as files"));
  CHECK_THROWS_WITH(client.run("pipeline.lua", Value(large), {}),
                    Catch::Matchers::Contains("a client may send 67108864"));
  CHECK(writer.client_runs() == 0);
}

TEST_CASE("a client of version 1 gets an error from a writer, which continues to serve others") {
  test::TempFolder temp;
  Engine writer(temp.options());
  int descriptor = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socket_path(temp.options().state).copy(address.sun_path, sizeof address.sun_path - 1);
  REQUIRE(::connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  test::send_raw(descriptor,
                 encode_value(Value::map({{"version", int64_t{1}}, {"verb", "nodes"}})));
  auto reply = decode_value(test::receive_raw(descriptor));
  REQUIRE(reply.ok());
  CHECK(*reply->find("frame") == Value("error"));
  CHECK_THAT(reply->find("message")->as_string(),
             Catch::Matchers::Contains("and this one uses version 1: use the same build"));
  CHECK(test::receive_raw(descriptor).empty());
  ::close(descriptor);
  ClientRequest request;
  request.mutable_ping();
  auto answer = send_to_writer(temp.options().state, request);
  REQUIRE(answer.ok());
  CHECK(answer->has_done());
  request.clear_kind();
  answer = send_to_writer(temp.options().state, request);
  REQUIRE(answer.ok());
  CHECK(answer->error().message() == "the writer does not know this request");
}

TEST_CASE("gc of the next writer keeps a finished run that its client still uses") {
  test::TempFolder temp;
  std::filesystem::path script = temp.path / "pipeline.lua";
  std::ofstream(script) << R"(
local flow = require "flow"
local make = flow.shell("make", { outputs = { o = "o.txt" }, command = "echo made > {outputs.o}" })
return flow.pipeline("made", {}, function() return make().o end)
)";
  std::optional<Engine> writer(temp.options());
  REQUIRE(writer->is_writer());
  Engine client(temp.options());
  REQUIRE_FALSE(client.is_writer());
  auto runs_left = [&] { return Reader(temp.options()).list().size(); };
  for (bool again : {false, true}) {
    std::optional<Run> run(again ? client.resume("last") : client.run(script.string()));
    run->wait();
    std::string id = run->id();
    writer.reset();
    writer.emplace(temp.options());
    REQUIRE(writer->is_writer());
    writer->gc(0);
    CHECK(run->info().status == "succeeded");
    CHECK(run->info().tasks.size() == 1);
    std::string out = (temp.path / "out").string();
    CHECK(client.get(id, "", out) == std::vector<std::string>{out + "/o.txt"});
    CHECK(runs_left() == 1);
  }
  writer->gc(0);
  CHECK(runs_left() == 0);
  CHECK(std::filesystem::is_empty(temp.path / "state" / "clients"));
}

TEST_CASE("gc removes the mark of a killed client") {
  test::TempFolder temp;
  Engine writer(temp.options());
  std::filesystem::path clients = temp.path / "state" / "clients";
  std::filesystem::create_directories(clients);
  std::ofstream(clients / "left") << "a-request";
  writer.gc(0);
  CHECK(std::filesystem::is_empty(clients));
}
