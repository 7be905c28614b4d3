#include "engine/serve/http/socket_address.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace flow {

std::optional<SocketAddress> socket_address(const std::string& text, uint16_t port) {
  SocketAddress address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (::inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.size = sizeof *v4;
  } else if (::inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.size = sizeof *v6;
    address.is_v6 = true;
  } else {
    return std::nullopt;
  }
  return address;
}

namespace {

/// Listens at the address, and sets its port. Returns the error's code with a socket of -1.
int open_listener(SocketAddress& address, int& listener) {
  int family = address.is_v6 ? AF_INET6 : AF_INET;
  listener = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener < 0) return errno;
  int yes = 1;
  // Without SO_REUSEPORT, so that a port in use is an error instead of a second listener. Accepted
  // sockets inherit the other options.
  ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  ::setsockopt(listener, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  ::setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  auto* name = reinterpret_cast<sockaddr*>(&address.storage);
  bool listens = ::bind(listener, name, address.size) == 0 && ::listen(listener, SOMAXCONN) == 0 &&
                 ::getsockname(listener, name, &address.size) == 0;
  if (listens) return 0;
  int code = errno;
  ::close(listener);
  listener = -1;
  return code;
}

}  // namespace

int listening_problem(const Address& address) {
  auto name = socket_address(address.host, address.port);
  if (!name) return EINVAL;
  int listener = -1;
  int code = open_listener(*name, listener);
  if (listener >= 0) ::close(listener);
  return code;
}

Result<ListeningSocket> listen_at(const std::string& service, const Address& address,
                                  const char* free_port) {
  auto bound = socket_address(address.host, address.port);
  if (!bound)
    return user_error(fmt::format("the service `{}` cannot listen on `{}`: it is not an address",
                                  service, address.host));
  int listener = -1;
  if (int code = open_listener(*bound, listener); code != 0)
    return listening_error(service, address, code, free_port);
  // The port is at the same place in both kinds of address.
  uint16_t port = ntohs(reinterpret_cast<sockaddr_in*>(&bound->storage)->sin_port);
  return ListeningSocket{listener, port, bound->is_v6};
}

Error listening_error(const std::string& service, const Address& address, int code,
                      const char* free_port) {
  std::string what =
      fmt::format("the service `{}` cannot listen on port {} of {}: ", service,
                  address.port == 0 ? "0 (any)" : std::to_string(address.port), address.host);
  if (code == EADDRINUSE && address.port != 0)
    return user_error(what + fmt::format("the port is in use. End the program that listens there, "
                                         "choose another port, or write {} for a free one",
                                         free_port));
  if (code == EACCES)
    return user_error(what +
                      fmt::format("this user may not listen on a port that low. Choose a port "
                                  "from 1024 on, or write {} for a free one",
                                  free_port));
  if (code == EADDRNOTAVAIL && address.host.starts_with("127."))
    return environment_error(what +
                             "the machine does not have that address. Bring up its loopback "
                             "interface: `ip link set lo up`");
  if (code == EADDRNOTAVAIL)
    return user_error(what +
                      "the machine does not have that address. `ip address` lists those "
                      "that it has");
  return environment_error(what + std::strerror(code));
}

}  // namespace flow
