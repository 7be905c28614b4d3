// A client of a head on another machine; the test plays the head.
#include "engine/client/remote_client.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "engine/api/cluster_transport.hpp"
#include "engine/base/engine_thread.hpp"
#include "engine/cluster/session/session_options.hpp"
#include "engine/cluster/session/sessions.hpp"
#include "tests/client/raw_frames.hpp"

using namespace flow;
namespace fs = std::filesystem;

namespace {

/// A head that handles each client with `answer`, on one thread per client.
class TestHead {
 public:
  using Answer = std::function<void(const std::shared_ptr<cluster::SessionChannel>&)>;
  TestHead(const std::string& secret_file, Answer answer) : answer_(std::move(answer)) {
    auto options = session_options(cluster::Role::head, "head", secret_file, true);
    REQUIRE(options.ok());
    auto transport = cluster_transport("127.0.0.1:0", *options);
    REQUIRE(transport.ok());
    transport_ = std::move(*transport);
    sessions_ = std::make_unique<cluster::Sessions>(*transport_, *options, [](std::string) {});
    auto listener =
        sessions_->listen("127.0.0.1:0", [this](const cluster::SessionPeer&, auto link) {
          auto channel = std::make_shared<cluster::SessionChannel>();
          channel->attach(link);
          std::lock_guard lock(mutex_);
          clients_.push_back(engine_thread([this, channel] { answer_(channel); }));
          return channel;
        });
    REQUIRE(listener.ok());
    listener_ = std::move(*listener);
  }
  ~TestHead() {
    listener_.reset();
    for (std::thread& client : clients_) client.join();
  }
  std::string address() const { return listener_->address(); }

 private:
  const Answer answer_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<cluster::Sessions> sessions_;
  std::mutex mutex_;
  std::list<std::thread> clients_;
  std::unique_ptr<Listener> listener_;
};

class TempSecret {
 public:
  TempSecret() { REQUIRE(::mkdtemp(folder_.data()) != nullptr); }
  ~TempSecret() { fs::remove_all(folder_); }
  std::string path() const { return folder_ + "/secret"; }

 private:
  std::string folder_ = fs::temp_directory_path() / "flow-away-XXXXXX";
};

std::unique_ptr<detail::EngineImpl> client_of(const TestHead& head, const TempSecret& secret) {
  EngineOptions options;
  options.head = head.address();
  options.secret_file = secret.path();
  auto engine = RemoteEngine::open(options, cluster_transport);
  REQUIRE(engine.ok());
  return std::move(*engine);
}

}  // namespace

TEST_CASE("a reconnected head that requests an unknown blob ends the run with an error") {
  if (!FLOW_TEST_UCX) return;
  TempSecret secret;
  std::atomic<int> asked = 0;
  std::promise<void> leave;
  TestHead head(secret.path(), [&](const auto& channel) {
    SessionConnection link(channel);
    if (!link.receive<ClientRequest>().ok()) return;
    ServerReply reply;
    if (asked++ == 0) {
      reply.mutable_run_started()->set_run("r1");
      link.send(reply);
      leave.get_future().wait();
      return;
    }
    reply.mutable_missing_blobs()->add_digests(std::string(sizeof(Digest), 'x'));
    link.send(reply);
    (void)link.receive<ClientRequest>();  // until the client disconnects
  });
  auto engine = client_of(head, secret);
  auto run = engine->resume("r1", {}, false);
  leave.set_value();
  CHECK_THROWS_WITH(run->wait_end(), "the head requested a blob to which this run does not refer");
  engine.reset();
}

TEST_CASE("a head of version 1 is an error at once") {
  if (!FLOW_TEST_UCX) return;
  TempSecret secret;
  std::atomic<int> asked = 0;
  TestHead head(secret.path(), [&](const auto& channel) {
    asked++;
    char byte = 0;
    (void)channel->read(&byte, 1, std::nullopt);
    const std::string reply =
        encode_value(Value::map({{"frame", "error"}, {"kind", int64_t{3}}, {"message", "m"}}));
    uint32_t size = static_cast<uint32_t>(reply.size());
    channel->write({reinterpret_cast<const char*>(&size), sizeof size});
    channel->write(reply);
    while (channel->read(&byte, 1, std::nullopt)) continue;  // until the client disconnects
  });
  auto engine = client_of(head, secret);
  CHECK_THROWS_WITH(engine->resume("r1", {}, false), test::version_1_error());
  CHECK_THROWS_WITH(engine->show("r1"), test::version_1_error());
  CHECK_THROWS_WITH(engine->nodes(), test::version_1_error());
  CHECK(asked == 3);
  engine.reset();
}

TEST_CASE("a request to a head that is too large is not sent") {
  if (!FLOW_TEST_UCX) return;
  TempSecret secret;
  std::atomic<int> received = 0;
  TestHead head(secret.path(), [&](const auto& channel) {
    SessionConnection link(channel);
    received += link.receive<ClientRequest>().ok();  // false when the client disconnects
  });
  auto engine = client_of(head, secret);
  const std::string large(size_t{kClientFrameMax} + 1, 'x');
  RunOptions options;
  options.params_json = large;
  const auto says = Catch::Matchers::Contains("a client may send 67108864 (64 MiB)");
  CHECK_THROWS_WITH(engine->signal("last", "go", large), says);
  CHECK_THROWS_WITH(engine->resume("r1", options, false), says);
  engine.reset();
  CHECK(received == 0);
}
