// Which socket gets the connections to a port of loopback.
#include "engine/process/listening_socket.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <string>

#include "engine/base/file_descriptor.hpp"
#include "engine/process/process_stat.hpp"

using namespace flow;

namespace {

/// Listens at the port of the address, of IPv4 or IPv6.
class Listening {
 public:
  explicit Listening(const std::string& address, uint16_t wanted = 0)
      : is_v6_(address.find(':') != std::string::npos),
        socket_(::socket(is_v6_ ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in v4{};
    sockaddr_in6 v6{};
    v4.sin_family = AF_INET;
    v6.sin6_family = AF_INET6;
    v4.sin_port = v6.sin6_port = htons(wanted);
    void* host = is_v6_ ? static_cast<void*>(&v6.sin6_addr) : &v4.sin_addr;
    auto* name = is_v6_ ? reinterpret_cast<sockaddr*>(&v6) : reinterpret_cast<sockaddr*>(&v4);
    socklen_t size = is_v6_ ? sizeof v6 : sizeof v4;
    ::inet_pton(is_v6_ ? AF_INET6 : AF_INET, address.c_str(), host);
    int yes = 1;
    ::setsockopt(socket_.number, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    is_open = ::bind(socket_.number, name, size) == 0 && ::listen(socket_.number, 1) == 0 &&
              ::getsockname(socket_.number, name, &size) == 0;
    port = ntohs(is_v6_ ? v6.sin6_port : v4.sin_port);
  }

  bool is_open = false;
  uint16_t port = 0;

 private:
  const bool is_v6_;
  const FileDescriptor socket_;
};

std::optional<ListeningSocket> socket_at(uint16_t port) {
  auto found = listening_socket(port);
  INFO((found.ok() ? "" : found.error().message));
  REQUIRE(found.ok());
  return *found;
}

}  // namespace

TEST_CASE("the socket that listens at a port of loopback is found, at each address of it") {
  struct {
    const char* address;
    bool is_found, is_on_loopback;
  } cases[] = {{"127.0.0.1", true, true}, {"0.0.0.0", true, false},
               {"::", true, false},       {"::ffff:127.0.0.1", true, true},
               {"::1", false, false},     {"127.0.0.2", false, false}};
  for (const auto& each : cases) {
    INFO(each.address);
    Listening listening(each.address);
    if (!listening.is_open) continue;  // a machine without IPv6
    auto found = socket_at(listening.port);
    REQUIRE(found.has_value() == each.is_found);
    if (!found) continue;
    CHECK(found->cookie != 0);
    CHECK(found->inode != 0);
    CHECK(found->user == ::geteuid());
    CHECK(found->is_on_loopback == each.is_on_loopback);
  }
}

TEST_CASE("a port whose socket was closed has none, and the next one has another name") {
  uint16_t port = 0;
  uint64_t first = 0;
  {
    Listening listening("127.0.0.1");
    port = listening.port;
    first = socket_at(port)->cookie;
    CHECK(socket_at(port)->cookie == first);
  }
  CHECK_FALSE(socket_at(port));
  Listening again("127.0.0.1", port);
  REQUIRE(again.is_open);
  CHECK(socket_at(port)->cookie != first);
}

TEST_CASE("a socket is found in the descendants of a process, and only there") {
  int told[2];
  REQUIRE(::pipe(told) == 0);
  pid_t child = ::fork();
  if (child == 0) {
    // Its child has the socket, as a server has that a shell starts.
    if (::fork() == 0) {
      Listening listening("127.0.0.1");
      (void)!::write(told[1], &listening.port, sizeof listening.port);
      ::pause();
    }
    ::pause();
  }
  uint16_t port = 0;
  REQUIRE(::read(told[0], &port, sizeof port) == sizeof port);
  auto found = socket_at(port);
  REQUIRE(found);
  CHECK(is_open_in_descendant(::getpid(), *found));
  CHECK(is_open_in_descendant(child, *found));
  Listening own("127.0.0.1");
  CHECK_FALSE(is_open_in_descendant(::getpid(), *socket_at(own.port)));
  for (pid_t pid : living_descendants(child)) {
    CHECK_FALSE(is_open_in_descendant(pid, *found));
    ::kill(pid, SIGKILL);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(told[0]);
  ::close(told[1]);
}
