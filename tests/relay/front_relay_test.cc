// A worker's relay and a front's gate, over loopback.
#include "engine/relay/front_relay.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/base/files.hpp"
#include "engine/base/temporary_folder.hpp"
#include "engine/base/unix_socket.hpp"
#include "engine/front/worker_gate.hpp"

using namespace flow;

namespace {

const std::string kFrontName = "0123456789abcdef";

bool becomes_true(const std::function<bool()>& holds) {
  auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

bool send_fully(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    pollfd waited{socket, POLLOUT, 0};
    ::poll(&waited, 1, -1);
    ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EAGAIN) continue;
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

/// Up to `size` bytes; fewer at the end of the connection.
std::string receive_up_to(int socket, size_t size) {
  std::string bytes(size, '\0');
  size_t got = 0;
  while (got < size) {
    pollfd waited{socket, POLLIN, 0};
    ::poll(&waited, 1, -1);
    ssize_t count = ::recv(socket, bytes.data() + got, size - got, 0);
    if (count < 0 && errno == EAGAIN) continue;
    if (count <= 0) break;
    got += static_cast<size_t>(count);
  }
  return bytes.substr(0, got);
}

std::string numbered(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; i++) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  return bytes;
}

front::Gate gate_with(char secret) {
  front::Gate gate;
  gate.set_host("127.0.0.1");
  gate.set_secret(std::string(kKeyBytes, secret));
  gate.set_name("head");
  gate.set_version("1");
  gate.set_lost_after_ms(10'000);
  return gate;
}

cluster::SessionOptions worker_with(char secret) {
  cluster::SessionOptions options;
  options.role = cluster::Role::worker;
  options.name = "w1";
  options.version = "1";
  cluster::Secret bytes;
  bytes.bytes.fill(static_cast<uint8_t>(secret));
  options.secret = std::make_shared<const cluster::Secret>(bytes);
  return options;
}

/// The front's side: its gate, and the connections that it let in.
class Gatehouse {
 public:
  explicit Gatehouse(const std::string& folder)
      : gate_(
            loop_, folder + "/front.gate",
            [this](int socket, RemotePeer peer) {
              std::lock_guard lock(mutex_);
              peers_.emplace_back(socket, std::move(peer));
            },
            [this](const std::string& line) {
              std::lock_guard lock(mutex_);
              lines_ += line + "\n";
            }) {}
  ~Gatehouse() {
    loop_.stop();
    for (auto& [socket, peer] : peers_) ::close(socket);
  }
  void open(char secret = 's') {
    loop_.run([&] { REQUIRE(gate_.open(gate_with(secret)).ok()); });
  }
  uint16_t port() {
    uint16_t port = 0;
    loop_.run([&] { port = gate_.port(); });
    return port;
  }
  size_t count() {
    std::lock_guard lock(mutex_);
    return peers_.size();
  }
  int socket(size_t number) {
    REQUIRE(becomes_true([&] { return count() > number; }));
    std::lock_guard lock(mutex_);
    return peers_[number].first;
  }
  std::string worker(size_t number) {
    std::lock_guard lock(mutex_);
    return peers_[number].second.worker;
  }
  /// A connection to the port at the worker, or why there is none.
  Result<int> connect(size_t number, uint16_t port) {
    std::promise<Result<int>> made;
    loop_.run([&] {
      peers_[number].second.connect(port, [&](Result<int> socket) { made.set_value(socket); });
    });
    return made.get_future().get();
  }
  std::string lines() {
    std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  EventLoop loop_{"flow-test", {}};
  std::mutex mutex_;
  std::vector<std::pair<int, RemotePeer>> peers_;
  std::string lines_;
  WorkerGate gate_;
};

struct Connection {
  explicit Connection(int number) : number(number) { REQUIRE(number >= 0); }
  ~Connection() { ::close(number); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  const int number;
};

int connect_tcp(uint16_t port) {
  int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return socket;
  ::close(socket);
  return -1;
}

/// Listens at a port of loopback.
std::pair<int, uint16_t> listen_tcp() {
  int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  REQUIRE(::bind(socket, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(socket, 8) == 0);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return {socket, ntohs(address.sin_port)};
}

std::shared_ptr<const std::string> new_folder() {
  auto made = make_temporary_folder();
  REQUIRE(made.ok());
  return *made;
}

struct RelayPlace {
  explicit RelayPlace(char secret = 's')
      : relay(worker_with(secret), "127.0.0.1", [this](const std::string& note) {
          std::lock_guard lock(mutex);
          notes += note + "\n";
        }) {
    REQUIRE(relay.open(folder()).ok());
  }
  std::string folder() const { return *temporary + "/" + kFrontName; }
  int connect() {
    auto connected = connect_unix(folder() + "/front.sock");
    REQUIRE(connected.ok());
    return *connected;
  }
  std::string noted() {
    std::lock_guard lock(mutex);
    return notes;
  }

  const std::shared_ptr<const std::string> temporary = new_folder();
  std::mutex mutex;
  std::string notes;
  FrontRelay relay;
};

}  // namespace

TEST_CASE("a relay carries the connections of replicas to a gate") {
  RelayPlace place;
  Gatehouse gate(*place.temporary);
  gate.open();
  Connection early(place.connect());  // before the relay knows the port
  REQUIRE(send_fully(early.number, "join"));
  place.relay.set_port(kFrontName, gate.port());
  int there = gate.socket(0);
  CHECK(gate.worker(0) == "w1");
  CHECK(receive_up_to(there, 4) == "join");
  REQUIRE(send_fully(there, "admitted"));
  CHECK(receive_up_to(early.number, 8) == "admitted");

  Connection second(place.connect());
  const std::string large = numbered(20 << 20);
  int other = gate.socket(1);
  auto back = std::async(std::launch::async, [&] { return send_fully(other, large); });
  auto forth = std::async(std::launch::async, [&] { return send_fully(second.number, large); });
  auto got = std::async(std::launch::async, [&] { return receive_up_to(other, large.size()); });
  CHECK(receive_up_to(second.number, large.size()) == large);
  CHECK(got.get() == large);
  CHECK(back.get());
  CHECK(forth.get());
}

TEST_CASE("the end of either connection ends the other, after what was sent before it") {
  RelayPlace place;
  Gatehouse gate(*place.temporary);
  gate.open();
  place.relay.set_port(kFrontName, gate.port());
  {
    Connection replica(place.connect());
    REQUIRE(send_fully(replica.number, "last words"));
    gate.socket(0);
  }
  CHECK(receive_up_to(gate.socket(0), 100) == "last words");
  Connection replica(place.connect());
  int there = gate.socket(1);
  REQUIRE(send_fully(there, "released"));
  ::shutdown(there, SHUT_RDWR);
  CHECK(receive_up_to(replica.number, 100) == "released");
}

TEST_CASE("a worker without the secret gets nowhere") {
  RelayPlace place('x');
  Gatehouse gate(*place.temporary);
  gate.open();
  place.relay.set_port(kFrontName, gate.port());
  Connection replica(place.connect());
  REQUIRE(send_fully(replica.number, "join"));
  CHECK(becomes_true([&] { return place.noted().find("secret") != std::string::npos; }));
  CHECK(becomes_true([&] { return gate.lines().find("secret") != std::string::npos; }));
  CHECK(gate.count() == 0);
}

TEST_CASE("strangers at a gate are dropped, and do not keep a worker out") {
  RelayPlace place;
  Gatehouse gate(*place.temporary);
  gate.open();
  std::vector<std::unique_ptr<Connection>> strangers;
  for (size_t i = 0; i < WorkerGate::kHandshakesMax + 8; i++)
    strangers.push_back(std::make_unique<Connection>(connect_tcp(gate.port())));
  REQUIRE(send_fully(strangers[0]->number, "GET / HTTP/1.1\r\n\r\n"));
  for (auto& stranger : strangers) CHECK(receive_up_to(stranger->number, 4096).size() < 1100);
  place.relay.set_port(kFrontName, gate.port());
  Connection replica(place.connect());
  REQUIRE(send_fully(replica.number, "join"));
  CHECK(receive_up_to(gate.socket(0), 4) == "join");
}

TEST_CASE("a later front takes the same port, and the replicas join it") {
  RelayPlace place;
  uint16_t port = 0;
  {
    Gatehouse gate(*place.temporary);
    gate.open();
    port = gate.port();
    place.relay.set_port(kFrontName, port);
    Connection replica(place.connect());
    gate.socket(0);
  }
  Connection waiting(place.connect());
  REQUIRE(send_fully(waiting.number, "join"));
  Gatehouse next(*place.temporary);
  next.open();
  CHECK(next.port() == port);
  CHECK(receive_up_to(next.socket(0), 4) == "join");
  auto file = read_file(*place.temporary + "/front.gate", 100);
  REQUIRE(file.ok());
  CHECK(*file == std::to_string(port) + " " + std::to_string(::getpid()) + "\n");
  next.open('t');  // another engine, with another secret: the port stays
  CHECK(next.port() == port);
}

TEST_CASE("a gate forwards connections to a server at the worker") {
  RelayPlace place;
  Gatehouse gate(*place.temporary);
  gate.open();
  place.relay.set_port(kFrontName, gate.port());
  Connection replica(place.connect());
  gate.socket(0);
  auto [listener, port] = listen_tcp();
  Connection server(listener);
  auto connected = gate.connect(0, port);
  REQUIRE(connected.ok());
  CHECK(::fcntl(*connected, F_SETFL, 0) == 0);  // it blocks
  Connection client(*connected);
  REQUIRE(send_fully(client.number, "GET /"));
  Connection accepted(::accept4(server.number, nullptr, nullptr, SOCK_CLOEXEC));
  CHECK(receive_up_to(accepted.number, 5) == "GET /");
  REQUIRE(send_fully(accepted.number, "answer"));
  ::shutdown(accepted.number, SHUT_RDWR);
  CHECK(receive_up_to(client.number, 100) == "answer");
  auto [closed, free_port] = listen_tcp();
  ::close(closed);
  auto refused = gate.connect(0, free_port);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().message == "it does not accept connections");
}

TEST_CASE("a gate says that the worker of a server is gone") {
  RelayPlace place;
  Gatehouse gate(*place.temporary);
  gate.open();
  place.relay.set_port(kFrontName, gate.port());
  auto [listener, port] = listen_tcp();
  Connection server(listener);
  {
    Connection replica(place.connect());
    gate.socket(0);
  }
  CHECK(receive_up_to(gate.socket(0), 1).empty());  // the replica has left
  auto gone = gate.connect(0, port);
  REQUIRE_FALSE(gone.ok());
  CHECK(gone.error().message == "the connection to its worker has ended");
}
