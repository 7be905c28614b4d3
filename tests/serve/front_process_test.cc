// The program flow-front with replicas at its socket and clients on loopback.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>

#include "engine/base/files.hpp"
#include "engine/base/temporary_folder.hpp"
#include "socket_peer.hpp"

using namespace flow;
using Catch::Contains;

namespace {

class FrontProgram {
 public:
  explicit FrontProgram(const std::string& folder) : folder_(folder) {
    std::string program = FLOW_TEST_FRONT;
    const char* arguments[] = {program.c_str(), "--folder", folder_.c_str(),
                               "--lease",       "60000",    nullptr};
    REQUIRE(::posix_spawn(&pid, program.c_str(), nullptr, nullptr, const_cast<char**>(arguments),
                          environ) == 0);
  }
  ~FrontProgram() {
    if (pid > 0) ::kill(pid, SIGKILL);
    wait();
  }
  /// The exit code, or the negative number of the signal.
  int wait() {
    if (pid <= 0) return code_;
    int status = 0;
    ::waitpid(pid, &status, 0);
    pid = -1;
    return code_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  std::string socket() const { return folder_ + "/front.sock"; }
  std::string log() const {
    return read_file(folder_ + "/front.log").ok() ? *read_file(folder_ + "/front.log") : "";
  }

  pid_t pid = -1;

 private:
  const std::string folder_;
  int code_ = -1;
};

/// A replica with a thread that answers batches.
class SocketReplica {
 public:
  explicit SocketReplica(const std::string& path) : peer_(path) {
    REQUIRE(peer_.join());
    front::FromFront answer = peer_.read();
    REQUIRE(answer.has_admitted());
    url = answer.admitted().url();
    thread_ = std::thread([this] { work(); });
  }
  ~SocketReplica() { die(); }
  /// Ends in the middle of a batch, once it has begun one.
  void die_in_batch() {
    dies_ = true;
    thread_.join();
    peer_.close();
  }
  void die() {
    if (!thread_.joinable()) return;
    peer_.shut_down();
    thread_.join();
  }
  void leave() {
    front::ToFront message;
    message.mutable_leave()->set_grace_ms(10'000);
    peer_.send(message);
  }
  void wait_end() {
    if (thread_.joinable()) thread_.join();
  }

  std::string url;
  std::atomic<int> batches{0};
  std::atomic<bool> is_released{false};

 private:
  void work() {
    while (!is_released) {
      Bytes frame = peer_.read_frame();
      if (frame == nullptr) return;
      auto batch = parse_batch(frame);
      if (!batch->has_value()) {
        front::FromFront message;
        message.ParseFromArray(frame->data(), static_cast<int>(frame->size()));
        is_released = message.has_released();
        continue;
      }
      if (dies_) return;
      batches++;
      peer_.send(outcome_frame((*batch)->id, add_one((*batch)->inputs)));
    }
  }

  SocketPeer peer_;
  std::atomic<bool> dies_{false};
  std::thread thread_;
};

/// Clients that send one request after the other.
class SteadyClients {
 public:
  SteadyClients(int port, int count) {
    for (int i = 0; i < count; i++)
      threads_.emplace_back([this, port] {
        Client client(port);
        while (!stops_) {
          int value = answered % 100;
          Reply reply = client.post(kInfer, infer_body("x", value));
          if (reply.status == 200 && first_number(reply) == value + 1) {
            answered++;
          } else {
            failed++;
            std::lock_guard lock(mutex_);
            failure_ = std::to_string(reply.status) + " " + reply.body;
          }
          if (reply.status == 0) return;
        }
      });
  }
  ~SteadyClients() { stop(); }
  void stop() {
    stops_ = true;
    for (std::thread& each : threads_)
      if (each.joinable()) each.join();
  }
  void wait_more(int count) {
    for (int from = answered; answered < from + count && failed == 0;) std::this_thread::yield();
  }

  std::string failure() {
    std::lock_guard lock(mutex_);
    return failure_;
  }

  std::atomic<int> answered{0}, failed{0};

 private:
  std::mutex mutex_;
  std::string failure_;
  std::atomic<bool> stops_{false};
  std::vector<std::thread> threads_;
};

}  // namespace

TEST_CASE("no request is lost when replicas die in the middle of batches, and others leave") {
  auto folder = make_temporary_folder();
  REQUIRE(folder.ok());
  FrontProgram program(**folder + "/front");
  auto one = std::make_unique<SocketReplica>(program.socket());
  SocketReplica two(program.socket());
  SteadyClients clients(port_of(one->url), 4);
  clients.wait_more(200);
  for (int i = 0; i < 5; i++) {
    one->die_in_batch();
    one = std::make_unique<SocketReplica>(program.socket());
    clients.wait_more(50);
  }
  one->leave();
  one->wait_end();
  CHECK(one->is_released);
  clients.wait_more(50);
  two.die();  // now there is none
  SocketReplica three(program.socket());
  clients.wait_more(50);
  clients.stop();
  INFO(clients.failure());
  CHECK(clients.failed == 0);
  three.leave();
  three.wait_end();
  CHECK(three.is_released);
  CHECK(program.wait() == 0);
  CHECK_FALSE(std::filesystem::exists(program.socket()));
  CHECK_THAT(program.log(), Contains("the front begins") && Contains("the front ends"));
}

TEST_CASE("a second front in the folder ends at once, and SIGTERM drains the first") {
  auto folder = make_temporary_folder();
  REQUIRE(folder.ok());
  FrontProgram first(**folder);
  SocketReplica replica(first.socket());
  FrontProgram second(**folder);
  CHECK(second.wait() == 0);
  int pid = 0;
  std::ifstream(**folder + "/front.pid") >> pid;
  CHECK(pid == first.pid);
  Client client(port_of(replica.url));
  CHECK(client.post(kInfer, infer_body("x", 1)).status == 200);
  ::kill(first.pid, SIGTERM);
  Reply reply;
  while (reply.headers.find("Connection: close") == std::string::npos && first.pid > 0) {
    reply = client.post(kInfer, infer_body("x", 1));
    if (reply.status != 200) break;
  }
  CHECK(reply.status == 200);
  client.close();
  replica.wait_end();
  CHECK(replica.is_released);
  CHECK(first.wait() == 0);
}

TEST_CASE("after a kill a new front takes the same port, and replicas join it") {
  auto folder = make_temporary_folder();
  REQUIRE(folder.ok());
  std::string url;
  {
    FrontProgram first(**folder);
    SocketReplica replica(first.socket());
    url = replica.url;
    Client client(port_of(url));
    CHECK(client.post(kInfer, infer_body("x", 1)).status == 200);
    ::kill(first.pid, SIGKILL);
    replica.wait_end();
    CHECK_FALSE(replica.is_released);
    CHECK(first.wait() == -SIGKILL);
  }
  FrontProgram second(**folder);
  SocketReplica replica(second.socket());
  CHECK(replica.url == url);
  Client client(port_of(url));
  CHECK(client.post(kInfer, infer_body("x", 1)).status == 200);
}

TEST_CASE("a front in a deep folder listens, and wrong arguments are an error") {
  auto folder = make_temporary_folder();
  REQUIRE(folder.ok());
  std::string deep = **folder;
  while (deep.size() < 200) deep += "/a-rather-long-name";
  FrontProgram program(deep);
  int descriptor = -1;
  while ((descriptor = ::open(deep.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
    std::this_thread::yield();
  SocketReplica replica("/proc/self/fd/" + std::to_string(descriptor) + "/front.sock");
  CHECK(request(port_of(replica.url), "GET", "/v2/health/ready").status == 200);
  ::close(descriptor);
  FrontProgram wrong("");
  CHECK(wrong.wait() == 2);
}
