// A server whose exact bytes a test sends and sees.
#pragma once
#include <poll.h>

#include <array>
#include <string>

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

/// An upstream with a connection whose buffer the test can fill.
class UpstreamPair {
 public:
  UpstreamPair() : UpstreamPair(open()) {}
  /// For the proxy, which owns it.
  int connection() const { return ::dup(own_.descriptor()); }
  /// Nothing more has room on the way to the upstream. No new connection can be made.
  void fill() {
    const std::string filler(4096, '.');
    for (size_t size : {filler.size(), size_t{1}})
      while (::send(own_.descriptor(), filler.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
      }
    own_.close();
  }
  /// What has arrived.
  std::string read_all() {
    own_.close();
    std::string all, part(size_t{64} << 10, ' ');
    while (receive(part) > 0) {
      all += part;
      part.resize(size_t{64} << 10);
    }
    return all;
  }
  /// Whether the proxy has closed the connection. Nothing may be left to read.
  bool has_ended() {
    std::string part(1, ' ');
    return receive(part) == 0;
  }

 private:
  static std::array<int, 2> open() {
    std::array<int, 2> sockets{-1, -1};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) == 0);
    return sockets;
  }
  explicit UpstreamPair(const std::array<int, 2>& sockets)
      : own_(sockets[0]), upstream(sockets[1]) {}
  ssize_t receive(std::string& part) const {
    ssize_t got = ::recv(upstream.descriptor(), part.data(), part.size(), MSG_DONTWAIT);
    if (got > 0) part.resize(static_cast<size_t>(got));
    return got;
  }

  HttpPeer own_;

 public:
  HttpPeer upstream;
};

}  // namespace flow
