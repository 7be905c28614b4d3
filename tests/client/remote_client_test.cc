// A client of a head on another machine, which here is a test that answers as it likes.
#include "engine/client/remote_client.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "engine/api/cluster_transport.hpp"
#include "engine/base/engine_thread.hpp"
#include "engine/cluster/session/session_options.hpp"
#include "engine/cluster/session/sessions.hpp"

using namespace flow;
namespace fs = std::filesystem;

namespace {

/// Takes up a run and goes when it is told to; then it asks for content that nobody named.
class ForgetfulHead {
 public:
  explicit ForgetfulHead(const std::string& secret_file) {
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
          clients_.push_back(engine_thread([this, channel] { answer(channel); }));
          return channel;
        });
    REQUIRE(listener.ok());
    listener_ = std::move(*listener);
  }
  ~ForgetfulHead() {
    listener_.reset();
    for (std::thread& client : clients_) client.join();
  }
  std::string address() const { return listener_->address(); }
  void leave() { left_.set_value(); }

 private:
  void answer(const std::shared_ptr<cluster::SessionChannel>& channel) {
    SessionConnection link(channel);
    if (!link.receive().ok()) return;
    if (asked_++ == 0) {
      link.send(Value::map({{"frame", "run"}, {"run", "r1"}}));
      left_.get_future().wait();
      return;
    }
    Value unknown(std::string(sizeof(Digest), 'x'));
    link.send(Value::map({{"frame", "lacks"}, {"digests", Value::list({unknown})}}));
    (void)link.receive();  // until the client goes
  }

  std::unique_ptr<Transport> transport_;
  std::unique_ptr<cluster::Sessions> sessions_;
  std::mutex mutex_;
  std::list<std::thread> clients_;
  std::atomic<int> asked_ = 0;
  std::promise<void> left_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace

TEST_CASE(
    "a head that is back and asks for what the run does not name ends the run with an error") {
  if (!FLOW_TEST_UCX) return;
  std::string folder = fs::temp_directory_path() / "flow-away-XXXXXX";
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  ForgetfulHead head(folder + "/secret");
  EngineOptions options;
  options.head = head.address();
  options.secret_file = folder + "/secret";
  auto engine = RemoteEngine::open(options, cluster_transport);
  REQUIRE(engine.ok());
  auto run = (*engine)->resume("r1", {}, false);
  head.leave();
  CHECK_THROWS_WITH(run->wait_end(), "the head asks for content that this run does not name");
  engine->reset();
  fs::remove_all(folder);
}
