// The authentication before UCX: which clients are accepted, which are rejected, and that UCX's own
// sockets receive from accepted machines only.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>

#include "tests/transports/kinds.hpp"

#if FLOW_TEST_UCX

#include "engine/base/address.hpp"
#include "transports/ucx/auth_handshake.hpp"
#include "transports/ucx/filter.hpp"
#include "transports/ucx/library.hpp"
#include "transports/ucx/sockets.hpp"

using namespace flow;
using namespace flow::ucx;
using Catch::Contains;

namespace {

Ip v4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d};
}

/// The two sides of a handshake, and the bytes in transit between them.
struct Handshakes {
  Handshakes(const std::string& server_key, const std::string& client_key)
      : server(AuthHandshake::Side::server, server_key, {v4(10, 0, 0, 1)}),
        client(AuthHandshake::Side::client, client_key, {v4(10, 0, 0, 2), v4(10, 1, 0, 2)}),
        to_server(client.hello()) {}
  /// Runs until neither side sends anything more.
  void run(size_t piece = 1 << 20) {
    while (!to_server.empty() || !to_client.empty()) {
      pass(to_server, piece, server, to_client, server_status);
      pass(to_client, piece, client, to_server, client_status);
    }
  }
  static void pass(std::string& from, size_t piece, AuthHandshake& to, std::string& back,
                   Status& status) {
    std::string bytes = from.substr(0, piece);
    from.erase(0, bytes.size());
    if (status.ok()) status = to.receive(bytes, back);
  }

  AuthHandshake server, client;
  std::string to_server, to_client;
  Status server_status, client_status;
};

int listening_at(const char* host) {
  int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  ::inet_pton(AF_INET, host, &own.sin_addr);
  REQUIRE(::bind(socket, reinterpret_cast<sockaddr*>(&own), sizeof own) == 0);
  REQUIRE(::listen(socket, 8) == 0);
  return socket;
}

/// Whether a client that connects from `host` is accepted; otherwise it receives nothing.
bool is_heard(const SocketAddress& at, const char* host) {
  int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  ::inet_pton(AF_INET, host, &own.sin_addr);
  REQUIRE(::bind(socket, reinterpret_cast<sockaddr*>(&own), sizeof own) == 0);
  bool is_there = ::connect(socket, at.address(), at.size) == 0;
  pollfd file{socket, POLLOUT, 0};
  if (!is_there && errno == EINPROGRESS && ::poll(&file, 1, 300) == 1) {
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
    is_there = error == 0;
  }
  ::close(socket);
  return is_there;
}

std::unique_ptr<Transport> with_key(const std::string& key, bool is_loopback_only = true) {
  TransportOptions options;
  options.key = key;
  auto made = make_ucx_transport(options, is_loopback_only);
  REQUIRE(made.ok());
  return std::move(*made);
}

/// A listener, the clients that it accepted, and the ones that it rejected.
struct Reception {
  explicit Reception(Transport& transport) {
    auto opened = transport.listen("127.0.0.1:0", [this](std::shared_ptr<Link> link) {
      return signal.with([&] {
        links.push_back(std::move(link));
        return handler;
      });
    });
    REQUIRE(opened.ok());
    listener = std::move(*opened);
    listener->set_on_rejected([this](const std::string& from, const std::string& why) {
      signal.with([&] { rejected.push_back(from + " " + why); });
    });
  }
  size_t came() {
    return signal.with([&] { return links.size(); });
  }
  std::string rejection() {
    REQUIRE(signal.wait([&] { return !rejected.empty(); }));
    return signal.with([&] { return rejected.back(); });
  }

  Signal signal;
  std::shared_ptr<Recorder> handler = std::make_shared<Recorder>();
  std::vector<std::shared_ptr<Link>> links;
  std::vector<std::string> rejected;
  std::unique_ptr<Listener> listener;
};

int plain_client(const std::string& address) {
  auto parsed = parse_address(address);
  auto to = numeric_socket(*parsed);
  int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(::connect(socket, to->address(), to->size) == 0);
  return socket;
}

/// A client that has completed the handshake by hand, and knows the port at which UCX expects it.
struct Proven {
  explicit Proven(const std::string& address) : socket(plain_client(address)) {
    AuthHandshake handshake(AuthHandshake::Side::client, "key", {});
    std::string unsent = handshake.hello();
    while (handshake.port() == 0) {
      REQUIRE(::send(socket, unsent.data(), unsent.size(), MSG_NOSIGNAL) ==
              static_cast<ssize_t>(unsent.size()));
      unsent.clear();
      char bytes[512];
      ssize_t got = ::recv(socket, bytes, sizeof bytes, 0);
      REQUIRE(got > 0);
      REQUIRE(handshake.receive({bytes, static_cast<size_t>(got)}, unsent).ok());
    }
    port = handshake.port();
  }
  int to_ucx() const { return plain_client("127.0.0.1:" + std::to_string(port)); }

  int socket;
  uint16_t port = 0;
};

/// Whether the other side closes the connection within the time limit of a test.
bool is_hung_up(int socket) {
  pollfd file{socket, POLLIN, 0};
  if (::poll(&file, 1, static_cast<int>(std::chrono::milliseconds(kLong).count())) != 1)
    return false;
  char byte = 0;
  return ::recv(socket, &byte, 1, 0) <= 0;
}

}  // namespace

TEST_CASE("Two sides with the same key authenticate each other, and the client learns the port") {
  for (const char* key : {"", "the key"}) {
    for (size_t piece : {1, 3, 50, 4096}) {
      CAPTURE(key, piece);
      Handshakes handshakes(key, key);
      handshakes.run(piece);
      REQUIRE(handshakes.server_status.ok());
      REQUIRE(handshakes.server.is_proven());
      CHECK(handshakes.client.is_proven());
      CHECK(handshakes.client.port() == 0);
      CHECK(handshakes.server.peer_ips() == std::vector<Ip>{v4(10, 0, 0, 2), v4(10, 1, 0, 2)});
      CHECK(handshakes.client.peer_ips() == std::vector<Ip>{v4(10, 0, 0, 1)});
      handshakes.to_client = handshakes.server.port_message(41'231);
      handshakes.run(piece);
      CHECK(handshakes.client_status.ok());
      CHECK(handshakes.client.port() == 41'231);
    }
  }
}

TEST_CASE("A different key is reported on both sides") {
  Handshakes handshakes("one", "another");
  handshakes.run();
  CHECK_FALSE(handshakes.server.is_proven());
  CHECK_FALSE(handshakes.client.is_proven());
  REQUIRE_FALSE(handshakes.server_status.ok());
  REQUIRE_FALSE(handshakes.client_status.ok());
  CHECK_THAT(handshakes.server_status.error().message, Contains("did not prove"));
  CHECK_THAT(handshakes.client_status.error().message, Contains("did not prove"));
}

TEST_CASE("A key on one side only is reported on both sides") {
  Handshakes handshakes("", "a key");
  handshakes.run();
  CHECK_THAT(handshakes.server_status.error().message,
             Contains("it has a secret and this has none"));
  CHECK_THAT(handshakes.client_status.error().message,
             Contains("it has no secret and this has one"));
  CHECK_FALSE(handshakes.server.is_proven());
  CHECK_FALSE(handshakes.client.is_proven());
}

TEST_CASE("A replayed, reflected or changed handshake message proves nothing") {
  Handshakes first("key", "key");
  std::string said = first.client.hello(), reply, proof;
  REQUIRE(first.server.receive(said, reply).ok());
  REQUIRE(first.client.receive(reply, proof).ok());
  SECTION("replayed") {
    AuthHandshake second(AuthHandshake::Side::server, "key", {});
    std::string ignored;
    REQUIRE(second.receive(said, ignored).ok());
    CHECK_FALSE(second.receive(proof, ignored).ok());
    CHECK_FALSE(second.is_proven());
  }
  SECTION("reflected: the server's proof, sent as the client's") {
    std::string ignored, of_server = reply.substr(reply.size() - proof.size());
    CHECK_FALSE(first.server.receive(of_server, ignored).ok());
    CHECK_FALSE(first.server.is_proven());
  }
  SECTION("reflected: the client's hello") {
    AuthHandshake client(AuthHandshake::Side::client, "key", {});
    std::string ignored;
    CHECK_FALSE(client.receive(client.hello(), ignored).ok());
    CHECK(ignored.empty());
  }
  SECTION("any changed byte of the proof") {
    for (size_t i = 4; i < proof.size(); i++) {
      CAPTURE(i);
      AuthHandshake server = first.server;
      std::string changed = proof, ignored;
      changed[i] ^= 1;
      CHECK_FALSE(server.receive(changed, ignored).ok());
    }
  }
  SECTION("a changed port message") {
    std::string ignored;
    REQUIRE(first.server.receive(proof, ignored).ok());
    std::string place = first.server.port_message(7700);
    place[4] ^= 1;
    CHECK_FALSE(first.client.receive(place, ignored).ok());
    CHECK(first.client.port() == 0);
  }
}

TEST_CASE("A client of another protocol is rejected by its first message") {
  for (const std::string& said :
       {std::string(64, '\0'), std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), pattern(9'000, 7),
        std::string("\xff\xff\xff\xff", 4)}) {
    AuthHandshake server(AuthHandshake::Side::server, "key", {});
    std::string reply;
    Status status = server.receive(said, reply);
    REQUIRE_FALSE(status.ok());
    CHECK_THAT(status.error().message, Contains("did not send a flow handshake"));
    CHECK(reply.empty());
  }
}

TEST_CASE("A later protocol version is reported as one") {
  AuthHandshake server(AuthHandshake::Side::server, "key", {}),
      client(AuthHandshake::Side::client, "key", {});
  std::string later = client.hello(), reply;
  later[4 + 8]++;
  Status status = server.receive(later, reply);
  REQUIRE_FALSE(status.ok());
  CHECK_THAT(status.error().message, Contains("its handshake has version 2"));
  CHECK(reply == server.hello());
}

TEST_CASE("A socket with a filter receives from the listed machines only") {
  int socket = listening_at("127.0.0.1");
  SocketAddress at = own_end(socket);
  CHECK(is_heard(at, "127.0.0.9"));
  REQUIRE(accept_only_from(socket, {}).ok());
  CHECK_FALSE(is_heard(at, "127.0.0.9"));
  std::vector<Ip> ips;
  for (uint8_t i = 0; i < 30; i++) {
    ips.push_back(v4(127, 0, 1, i));
    ips.push_back({0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, i});
  }
  REQUIRE(accept_only_from(socket, ips).ok());
  CHECK(is_heard(at, "127.0.1.0"));
  CHECK(is_heard(at, "127.0.1.29"));
  CHECK_FALSE(is_heard(at, "127.0.1.30"));
  ::close(socket);
}

// As in a flood or on a slow network: its last packet arrives when the filter is already installed.
TEST_CASE("A socket that blocks all connections completes none, not even one that had begun") {
  int socket = listening_at("127.0.0.1");
  SocketAddress at = own_end(socket);
  bool is_deaf = GENERATE(false, true);
  CAPTURE(is_deaf);
  int connection = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  REQUIRE(block_connections(connection).ok());  // drops the answer too: the listener sends it again
  REQUIRE(::connect(connection, at.address(), at.size) != 0);
  if (is_deaf) REQUIRE(block_connections(socket).ok());
  int none = 0;
  REQUIRE(::setsockopt(connection, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none) == 0);
  pollfd begun{connection, POLLOUT, 0}, waits{socket, POLLIN, 0};
  REQUIRE(::poll(&begun, 1, static_cast<int>(std::chrono::milliseconds(kLong).count())) == 1);
  CHECK((::poll(&waits, 1, 300) == 1) != is_deaf);
  CHECK(is_heard(at, "127.0.0.9") != is_deaf);
  ::close(connection);
  ::close(socket);
}

TEST_CASE("TCP sockets are listed, listening ones separately") {
  int listens = listening_at("127.0.0.1");
  int tcp = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int udp = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  int of_files = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto is_in = [](const std::vector<int>& all, int socket) {
    return std::find(all.begin(), all.end(), socket) != all.end();
  };
  std::vector<int> listening = *listening_sockets(), others = *other_tcp_sockets();
  CHECK(is_in(listening, listens));
  CHECK_FALSE(is_in(others, listens));
  CHECK(is_in(others, tcp));
  CHECK_FALSE(is_in(listening, tcp));
  for (int other : {udp, of_files}) CHECK_FALSE((is_in(listening, other) || is_in(others, other)));
  for (int each : {listens, tcp, udp, of_files}) ::close(each);
}

TEST_CASE("Of the sockets at its address, a filter accepts the machine that was admitted last") {
  int mine = listening_at("127.0.0.1"), other = listening_at("127.0.0.1");
  auto port = own_end(mine).port();
  std::string address = "UCX";
  address += static_cast<char>(port >> 8);
  address += static_cast<char>(port & 0xff);
  SocketFilter filter;
  REQUIRE(filter.watch({mine, other}, address).ok());
  CHECK_FALSE(is_heard(own_end(mine), "127.0.0.1"));
  CHECK(is_heard(own_end(other), "127.0.0.1"));
  for (size_t i = 0; i < kFilterIpsMax + 10; i++) {
    auto low = static_cast<uint8_t>(i & 0xff), high = static_cast<uint8_t>(i >> 8);
    REQUIRE(filter.allow({v4(127, 1, high, low)}).ok());
  }
  CHECK(is_heard(own_end(mine), "127.1.1.140"));
  CHECK(is_heard(own_end(mine), "127.1.0.20"));
  CHECK_FALSE(is_heard(own_end(mine), "127.1.0.2"));
  ::close(mine);
  ::close(other);
}

TEST_CASE("Links are established between sides with the same key, and refused to others") {
  auto server = with_key("one");
  Reception reception(*server);
  auto right = with_key("one"), wrong = with_key("another"), none = with_key("");
  auto up = std::make_shared<Recorder>(), down = std::make_shared<Recorder>();
  SECTION("the same key") {
    auto link = right->connect(reception.listener->address(), up);
    REQUIRE(link.ok());
    CHECK(up->wait_up());
    (*link)->send("in");
    CHECK(reception.handler->wait_frames(1));
  }
  SECTION("a different key") {
    auto link = wrong->connect(reception.listener->address(), down);
    CHECK_THAT(down->wait_down(), Contains("did not prove that it knows the cluster's secret"));
    CHECK_THAT(reception.rejection(), Contains("did not prove"));
    CHECK(reception.came() == 0);
  }
  SECTION("no key") {
    auto link = none->connect(reception.listener->address(), down);
    CHECK_THAT(down->wait_down(), Contains("it has a secret and this has none"));
    CHECK_THAT(reception.rejection(), Contains("it has no secret and this has one"));
  }
  SECTION("not a flow process") {
    int socket = plain_client(reception.listener->address());
    REQUIRE(::send(socket, "hello, who is there?", 20, MSG_NOSIGNAL) == 20);
    CHECK_THAT(reception.rejection(), Contains("did not send a flow handshake"));
    ::close(socket);
  }
}

TEST_CASE("Many silent connections do not keep a client out") {
  auto server = with_key("key"), client = with_key("key");
  Reception reception(*server);
  std::vector<int> sockets;
  for (size_t i = 0; i < kPendingMax + 20; i++)
    sockets.push_back(plain_client(reception.listener->address()));
  auto up = std::make_shared<Recorder>();
  auto link = client->connect(reception.listener->address(), up);
  REQUIRE(link.ok());
  CHECK(up->wait_up());
  for (int socket : sockets) ::close(socket);
}

// UCX 1.13 follows a pointer to its listener when a connection that it accepted sends its first
// message.
TEST_CASE("A connection that UCX accepted and that sends nothing is closed after its timeout") {
  auto server = with_key("key"), client = with_key("key");
  Reception reception(*server);
  std::string address = reception.listener->address();
  // The layout of UCX's connection manager: length, status, then the data.
  std::string said(9 + 40, '\0');
  said[0] = 40;
  for (size_t first : {0, 5, 9, 20}) {
    CAPTURE(first);
    Proven one(address);
    int silent = one.to_ucx(), late = one.to_ucx(), reset = one.to_ucx();
    REQUIRE(::send(late, said.data(), first, MSG_NOSIGNAL) == static_cast<ssize_t>(first));
    REQUIRE(::send(reset, said.data(), first, MSG_NOSIGNAL) == static_cast<ssize_t>(first));
    linger at_once{1, 0};
    ::setsockopt(reset, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // UCX's thread accepts them
    ::close(reset);
    ::close(one.socket);
    CHECK(is_hung_up(silent));
    static_cast<void>(::send(late, said.data() + first, said.size() - first, MSG_NOSIGNAL));
    CHECK(is_hung_up(late));
    ::close(silent);
    ::close(late);
  }
  auto up = std::make_shared<Recorder>();
  auto link = client->connect(address, up);
  REQUIRE(link.ok());
  CHECK(up->wait_up());
}

TEST_CASE("A transport ends while connections that UCX accepted are still silent") {
  size_t listening = listening_sockets()->size(), others = other_tcp_sockets()->size();
  std::vector<int> sockets;
  for (int i = 0; i < 20; i++) {
    auto server = with_key("key");
    Reception reception(*server);
    Proven one(reception.listener->address());
    for (int each = 0; each < 5; each++) sockets.push_back(one.to_ucx());
    sockets.push_back(one.socket);
    bool is_known_to_ucx = i % 2 == 0;
    if (is_known_to_ucx) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    server.reset();
    CHECK(listening_sockets()->size() == listening);
    CHECK(other_tcp_sockets()->size() == others + sockets.size());
  }
  for (int socket : sockets) CHECK(is_hung_up(socket));
  for (int socket : sockets) ::close(socket);
}

TEST_CASE("Links that come and go while others connect leave no listener and no socket open") {
  auto server = with_key("key");
  Reception reception(*server);
  size_t listening = listening_sockets()->size(), others = other_tcp_sockets()->size();
  for (int i = 0; i < 30; i++) {
    auto client = with_key("key");
    std::vector<std::shared_ptr<Recorder>> all;
    std::vector<std::shared_ptr<Link>> links;
    for (int each = 0; each < 4; each++) {
      all.push_back(std::make_shared<Recorder>());
      auto link = client->connect(reception.listener->address(), all.back());
      REQUIRE(link.ok());
      links.push_back(*link);
    }
    if (i % 3 == 0) CHECK(all.front()->wait_up());
    if (i % 3 == 1) std::this_thread::sleep_for(std::chrono::milliseconds(i));
    client.reset();
  }
  auto has_more = [&] {
    return listening_sockets()->size() > listening || other_tcp_sockets()->size() > others;
  };
  for (int i = 0; i < 500 && has_more(); i++)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(listening_sockets()->size() == listening);
  CHECK(other_tcp_sockets()->size() == others);
}

TEST_CASE("Whether a transport reaches other processes is read from UCX's list of its transports") {
  auto info = [](std::initializer_list<const char*> transports) {
    std::string text = "#\n# UCP context\n#\n#     component 0  :  self\n#\n";
    int index = 0;
    for (const char* each : transports)
      text += "#            resource " + std::to_string(index++) + "  :  md 1  dev 1  flags -- " +
              each + "\n";
    return text + "#\n# memory: 0.00MB, file descriptors: 2\n";
  };
  CHECK(reaches_others(info({"self/memory", "tcp/lo"})));
  CHECK(reaches_others(info({"self/memory", "posix/memory", "cuda_copy/cuda"})));
  CHECK(reaches_others(info({"rc_mlx5/mlx5_0:1"})));
  CHECK_FALSE(reaches_others(info({"self/memory"})));
  CHECK_FALSE(reaches_others(info({"self/memory", "cuda_copy/cuda", "cuda_ipc/cuda"})));
  CHECK(reaches_others(info({})));
  CHECK(reaches_others("resource "));  // another version may word it differently
}

// UCX 1.13 ends the process that connects like this.
TEST_CASE("Where UCX finds no network, a transport says so and what to check") {
  const char* set = ::getenv("UCX_TLS");
  std::string before = set == nullptr ? "" : set;
  ::setenv("UCX_TLS", "self", 1);
  auto made = make_ucx_transport({}, true);
  set == nullptr ? ::unsetenv("UCX_TLS") : ::setenv("UCX_TLS", before.c_str(), 1);
  REQUIRE_FALSE(made.ok());
  CHECK(made.error().kind == ErrorKind::environment);
  CHECK_THAT(made.error().message, Contains("finds no network") && Contains("/sys"));
  auto server = with_key("key"), client = with_key("key");
  Reception reception(*server);
  auto up = std::make_shared<Recorder>();
  auto link = client->connect(reception.listener->address(), up);
  REQUIRE(link.ok());
  CHECK(up->wait_up());
}

TEST_CASE("UCX's own sockets receive from authenticated machines only") {
  std::vector<int> before = *listening_sockets();
  auto server = with_key("key", false);
  std::vector<SocketAddress> of_ucx;
  auto now = listening_sockets();
  for (int socket : *now) {
    bool is_new = std::find(before.begin(), before.end(), socket) == before.end();
    bool is_loopback = own_end(socket).is_loopback();
    if (is_new && is_loopback) of_ucx.push_back(own_end(socket));
  }
  REQUIRE_FALSE(of_ucx.empty());
  for (const SocketAddress& at : of_ucx) CHECK_FALSE(is_heard(at, "127.0.0.1"));
  Reception reception(*server);
  auto client = with_key("key", false);
  auto up = std::make_shared<Recorder>();
  auto link = client->connect(reception.listener->address(), up);
  REQUIRE(link.ok());
  REQUIRE(up->wait_up());
  for (const SocketAddress& at : of_ucx) {
    CHECK(is_heard(at, "127.0.0.1"));
    CHECK_FALSE(is_heard(at, "127.0.0.77"));
  }
}

#endif
