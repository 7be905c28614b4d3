// Socket addresses.
#pragma once
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/address.hpp"
#include "flow/result.hpp"

namespace flow::ucx {

/// The address of a machine: IPv6, or IPv4 as ::ffff:a.b.c.d.
using Ip = std::array<uint8_t, 16>;

bool is_v4(const Ip& ip);
bool is_loopback(const Ip& ip);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool is_loopback() const;
  /// The address at which UCX listens instead: 127.0.0.1 for ::1, because UCX 1.13 uses one address
  /// per device, and loopback's is IPv4.
  SocketAddress for_ucx() const;
  Ip ip() const;
  uint16_t port() const;
  void set_port(uint16_t port);
};

/// The addresses of a socket's own end and of its peer; without a family if there is none. An IPv4
/// address is the same on an IPv6 socket.
SocketAddress own_end(int socket);
SocketAddress peer_end(int socket);
/// This process's TCP sockets that listen, and those that do not, including UCX's. Sockets that
/// another thread opens or closes meanwhile may be missing.
Result<std::vector<int>> listening_sockets();
Result<std::vector<int>> other_tcp_sockets();
/// This machine's addresses, except loopback and link-local ones.
std::vector<Ip> own_ips();

/// Of "10.0.0.7" and "::1"; an error for a name.
Result<SocketAddress> numeric_socket(const Address& address);
/// Resolves a name too, on a thread of its own, which calls `done`.
void resolve(const Address& address, std::function<void(Result<SocketAddress>)> done);
std::string socket_text(const sockaddr_storage& address);

}  // namespace flow::ucx
