// Peers in separate processes that die and hang; connections of strangers; which addresses listen.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "engine/base/address.hpp"
#include "tests/transports/kinds.hpp"

using namespace flow;

#if FLOW_TEST_UCX

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// Runs the program `transport_peer` and kills it at the end.
class Peer {
 public:
  explicit Peer(const std::string& address) {
    std::string program = FLOW_TEST_PEER, place = address;
    char* argv[] = {program.data(), place.data(), nullptr};
    REQUIRE(::posix_spawn(&pid_, program.c_str(), nullptr, nullptr, argv, environ) == 0);
  }
  ~Peer() { end(SIGKILL); }
  /// Returns once all its threads are stopped.
  void stop() const {
    ::kill(pid_, SIGSTOP);
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, WUNTRACED) == pid_);
    REQUIRE(WIFSTOPPED(status));
  }
  void go_on() const { ::kill(pid_, SIGCONT); }
  /// Its exit code, or the negated number of the signal that ended it.
  int end(int number) {
    if (pid_ == 0) return 0;
    if (number != 0) ::kill(pid_, number);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = 0;
};

int64_t ms_since(steady_clock::time_point began) {
  return std::chrono::duration_cast<milliseconds>(steady_clock::now() - began).count();
}

/// Local addresses "127.0.0.1:80" at which this process listens over TCP.
std::set<std::string> own_listeners() {
  std::set<std::string> inodes, found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    std::string name = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (name.starts_with("socket:[")) inodes.insert(name.substr(8, name.size() - 9));
  }
  for (const char* file : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream table(file);
    std::string line;
    std::getline(table, line);
    while (std::getline(table, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state, queues, timer, again, user, timeout, inode;
      words >> number >> local >> remote >> state >> queues >> timer >> again >> user >> timeout >>
          inode;
      constexpr const char* kListens = "0A";
      if (state == kListens && inodes.contains(inode)) found.insert(local);
    }
  }
  return found;
}

int plain_socket(const std::string& address) {
  auto parsed = parse_address(address);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(parsed->port);
  ::inet_pton(AF_INET, parsed->host.c_str(), &to.sin_addr);
  int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(socket, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
    ::close(socket);
    return -1;
  }
  return socket;
}

}  // namespace

TEMPLATE_TEST_CASE("A killed peer is noticed before the deadline", "", Ucx, UcxRendezvous) {
  TransportOptions options;
  options.deadline_ms = 50'000;
  Departures departures;
  std::string bytes(1 << 20, 'x');
  Two<TestType> two(options);
  Peer peer(two.listener->address());
  REQUIRE(two.handler()->wait_frames(1));
  SECTION("idle") {}
  SECTION("during frames and puts") {
    for (int i = 0; i < 20; i++) {
      two.link()->send(bytes);
      two.link()->put(static_cast<uint64_t>(i), region(bytes), departures.done());
    }
  }
  CHECK(peer.end(SIGKILL) == -SIGKILL);
  std::string cause = two.handler()->wait_down();
  CHECK(cause != "");
  CHECK_THAT(cause, !Catch::Contains("50000 ms"));
  CHECK(two.handler()->downs() == 1);
}

TEMPLATE_TEST_CASE("A peer that hangs with bytes in transit is down at the deadline", "", Ucx,
                   UcxRendezvous) {
  TransportOptions options;
  options.deadline_ms = 1'500;
  Departures departures;
  Arrivals arrivals;
  std::string bytes(1 << 20, 'x'), to(100, '.');
  Two<TestType> two(options);
  Peer peer(two.listener->address());
  REQUIRE(two.handler()->wait_frames(1));
  auto link = two.link();
  peer.stop();
  auto began = steady_clock::now();
  SECTION("one small frame") { link->send("x"); }
  SECTION("many frames") {
    for (int i = 0; i < 20'000; i++) link->send(std::string(500, 'x'));
  }
  SECTION("puts") {
    for (int i = 0; i < 20; i++)
      link->put(static_cast<uint64_t>(i), region(bytes), departures.done());
    link->post_receive(1, region(to), arrivals.done());
  }
  SECTION("a link that is being closed") {
    link->send(bytes);
    link->close(60'000);
  }
  CHECK_THAT(two.handler()->wait_down(), Catch::Contains("1500 ms"));
  CHECK(ms_since(began) >= 1'400);
  CHECK(departures.all().size() % 20 == 0);
}

TEST_CASE("A link to a listener that never answers is down at the deadline") {
  TransportOptions options;
  options.deadline_ms = 500;
  auto client = Ucx::make(options);
  int silent = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof own;
  REQUIRE(::bind(silent, reinterpret_cast<sockaddr*>(&own), size) == 0);
  REQUIRE(::listen(silent, 8) == 0);
  ::getsockname(silent, reinterpret_cast<sockaddr*>(&own), &size);
  auto handler = std::make_shared<Recorder>();
  auto link = client->connect(address_text({"127.0.0.1", ntohs(own.sin_port)}), handler);
  REQUIRE(link.ok());
  CHECK_THAT(handler->wait_down(), Catch::Contains("has not answered for 500 ms"));
  ::close(silent);
}

TEST_CASE("Host names are resolved, and a link to an unknown name goes down") {
  Two<Ucx> two;
  auto parsed = parse_address(two.listener->address());
  auto found = std::make_shared<Recorder>(), lost = std::make_shared<Recorder>();
  auto link = two.client->connect(address_text({"localhost", parsed->port}), found);
  auto other = two.client->connect("no-such-host.invalid:7700", lost);
  REQUIRE(link.ok());
  REQUIRE(other.ok());
  CHECK(found->wait_up());
  CHECK_THAT(lost->wait_down(), Catch::Contains("no-such-host.invalid"));
}

TEST_CASE("Links within a machine also work over ::1, if the machine has it") {
  int six = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 own{};
  own.sin6_family = AF_INET6;
  own.sin6_addr = IN6ADDR_LOOPBACK_INIT;
  bool has_six = ::bind(six, reinterpret_cast<sockaddr*>(&own), sizeof own) == 0;
  ::close(six);
  if (!has_six) {
    WARN("skipped: this machine has no ::1");
    return;
  }
  TransportOptions options;
  SECTION("without a key") {}
  SECTION("with a key") { options.key = "key"; }
  auto server = Ucx::make(options), client = Ucx::make(options);
  auto handler = std::make_shared<Recorder>(), came = std::make_shared<Recorder>();
  std::shared_ptr<Link> kept;
  auto listener = server->listen("[::1]:0", [&](std::shared_ptr<Link> link) {
    kept = std::move(link);
    return came;
  });
  REQUIRE(listener.ok());
  CHECK_THAT((*listener)->address(), Catch::StartsWith("[::1]:"));
  auto link = client->connect((*listener)->address(), handler);
  REQUIRE(link.ok());
  REQUIRE(handler->wait_up());
  (*link)->send("six");
  CHECK(came->wait_frames(1));
}

TEST_CASE("Listening at a host name is rejected with an error") {
  auto server = Ucx::make();
  auto listener = server->listen("localhost:0", [](std::shared_ptr<Link>) { return nullptr; });
  REQUIRE_FALSE(listener.ok());
  CHECK(listener.error().kind == ErrorKind::user);
  CHECK_THAT(listener.error().message, Catch::Contains("`localhost` is not an address"));
}

// UCX receives two events at once: one link has a frame, and the peer of another link has died. The
// handler of the frame sends over the other link before UCX processes the second event.
TEST_CASE("A frame is answered over a link whose peer has just died") {
  Two<Ucx> two;
  Signal signal;
  bool is_held = false, may_go_on = false;
  std::shared_ptr<Link> dying;
  two.make_handler = [&] {
    auto handler = std::make_shared<Recorder>();
    handler->answer([&](std::string_view) { dying->send("x"); });
    return handler;
  };
  auto own = std::make_shared<Recorder>();
  auto link = two.connect(own);
  REQUIRE(own->wait_up());
  REQUIRE(two.link(0));
  two.make_handler = nullptr;
  Peer peer(two.listener->address());
  REQUIRE(two.handler(1)->wait_frames(1));
  dying = two.link(1);
  peer.stop();
  dying->send("unread");
  std::string to(1, '.');
  Arrivals arrivals;
  two.link(0)->post_receive(1, region(to), arrivals.done());
  two.link(0)->post_receive(1, region(to), [&](const Result<size_t>&) {  // already posted
    signal.with([&] { is_held = true; });
    signal.wait([&] { return may_go_on; });
  });
  REQUIRE(signal.wait([&] { return is_held; }));
  link->send("frame");
  std::this_thread::sleep_for(milliseconds(100));  // it has arrived
  peer.end(SIGKILL);
  signal.with([&] { may_go_on = true; });
  CHECK(two.handler(1)->wait_down() != "");
  CHECK(own->downs() == 0);
  link->close(0);
  CHECK(arrivals.wait(1));
}

TEST_CASE("A peer that hangs and continues in time loses nothing") {
  Two<Ucx> two;
  Peer peer(two.listener->address());
  REQUIRE(two.handler()->wait_frames(1));
  peer.stop();
  for (int i = 0; i < 2'000; i++) two.link()->send(std::to_string(i) + std::string(2'000, 'x'));
  std::this_thread::sleep_for(milliseconds(300));
  peer.go_on();
  REQUIRE(two.handler()->wait_frames(2'001));
  CHECK(two.handler()->frames().back().starts_with("1999x"));
  CHECK(two.handler()->downs() == 0);
}

TEST_CASE("Garbage and half a handshake do not affect other clients") {
  Two<Ucx> two;
  auto before = std::make_shared<Recorder>(), after = std::make_shared<Recorder>();
  auto first = two.connect(before);
  REQUIRE(before->wait_up());
  std::vector<int> sockets;
  for (uint64_t seed = 0; seed < 40; seed++) {
    int socket = plain_socket(two.listener->address());
    if (socket < 0) continue;
    std::string text = seed % 2 == 0   ? "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
                       : seed % 7 == 0 ? std::string(64, '\0')
                                       : pattern(9'000, seed);
    if (seed % 5 != 0) CHECK(::send(socket, text.data(), text.size(), MSG_NOSIGNAL) > 0);
    sockets.push_back(socket);
    if (seed % 3 == 0) {
      ::close(socket);
      sockets.pop_back();
    }
  }
  CHECK(sockets.size() > 20);
  std::this_thread::sleep_for(milliseconds(300));
  first->send("still here");
  CHECK(two.handler()->wait_frames(1));
  auto second = two.connect(after);
  CHECK(after->wait_up());
  second->send("and new ones come");
  CHECK(two.handler(1)->wait_frames(1));
  for (int socket : sockets) ::close(socket);
  CHECK(before->downs() == 0);
}

TEST_CASE("Without a secret nothing listens beyond loopback, not even UCX's own listeners") {
  std::set<std::string> before = own_listeners();
  Two<Ucx> two;
  auto handler = std::make_shared<Recorder>();
  auto link = two.connect(handler);
  REQUIRE(handler->wait_up());
  size_t opened = 0;
  for (const std::string& local : own_listeners()) {
    CAPTURE(local);
    constexpr const char *kLoopback = "0100007F:",
                         *kLoopback6 = "00000000000000000000000001000000:";
    CHECK((local.starts_with(kLoopback) || local.starts_with(kLoopback6)));
    opened += before.contains(local) ? 0 : 1;
  }
  CHECK(opened > 0);
  auto accept = [](std::shared_ptr<Link>) { return nullptr; };
  for (const char* address : {"0.0.0.0:0", "[::]:0", "192.0.2.1:0"}) {
    CAPTURE(address);
    auto listener = two.server->listen(address, accept);
    REQUIRE_FALSE(listener.ok());
    CHECK_THAT(listener.error().message, Catch::Contains("without a secret"));
  }
  auto far = std::make_shared<Recorder>();
  auto outward = two.client->connect("192.0.2.1:7700", far);
  REQUIRE(outward.ok());
  CHECK_THAT(far->wait_down(), Catch::Contains("without a secret"));
}

TEST_CASE("A child process inherits none of UCX's files") {
  Two<Ucx> two;
  auto handler = std::make_shared<Recorder>();
  auto link = two.connect(handler);
  REQUIRE(handler->wait_up());
  int out[2];
  REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);  // as engine/worker starts executors
  char program[] = "/bin/ls", folder[] = "/proc/self/fd";
  char* argv[] = {program, folder, nullptr};
  pid_t pid = 0;
  REQUIRE(::posix_spawn(&pid, program, &actions, nullptr, argv, environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
  ::close(out[1]);
  std::string listed(4096, '\0');
  listed.resize(static_cast<size_t>(std::max<ssize_t>(0, ::read(out[0], listed.data(), 4096))));
  ::close(out[0]);
  ::waitpid(pid, nullptr, 0);
  CHECK(listed == "0\n1\n2\n3\n");  // 3 is the folder itself
  link->send("still here");
  CHECK(two.handler()->wait_frames(1));
}

#endif
