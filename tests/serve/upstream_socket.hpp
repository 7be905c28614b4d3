// A server whose exact bytes a test sends and sees.
#pragma once
#include <poll.h>

#include "http_peer.hpp"

namespace flow {

/// The listening socket of an upstream.
class UpstreamSocket {
 public:
  UpstreamSocket() { open(); }
  ~UpstreamSocket() { close(); }
  HttpPeer accept() const { return HttpPeer(::accept(descriptor_, nullptr, nullptr)); }
  bool has_connection() const {
    pollfd poll{descriptor_, POLLIN, 0};
    return ::poll(&poll, 1, 0) == 1;
  }
  void close() {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  }
  /// With another socket, at the same port.
  void listen_again() {
    close();
    open();
  }

  uint16_t port = 0;

 private:
  void open() {
    descriptor_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int yes = 1;
    ::setsockopt(descriptor_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* name = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(::bind(descriptor_, name, size) == 0);
    REQUIRE(::listen(descriptor_, 64) == 0);
    REQUIRE(::getsockname(descriptor_, name, &size) == 0);
    port = ntohs(address.sin_port);
  }

  int descriptor_ = -1;
};

}  // namespace flow
