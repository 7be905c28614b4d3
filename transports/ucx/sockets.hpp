// Addresses as sockets have them.
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

/// A machine's: of IPv6, or of IPv4 as ::ffff:a.b.c.d.
using Ip = std::array<uint8_t, 16>;

bool is_v4(const Ip& ip);
bool is_loopback(const Ip& ip);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool is_loopback() const;
  /// Where UCX is reached in its place: 127.0.0.1 for ::1, as UCX 1.13 takes one address of a
  /// device, and loopback's is that of IPv4.
  SocketAddress for_ucx() const;
  Ip ip() const;
  uint16_t port() const;
  void set_port(uint16_t port);
};

/// Of a socket's own end, and of its peer's; of no family where there is none. One of IPv4 is that
/// on a socket of IPv6 too.
SocketAddress own_end(int socket);
SocketAddress peer_end(int socket);
/// This process's TCP sockets that listen, and those that do not, UCX's among them. What another
/// thread opens or closes meanwhile may be there or not.
Result<std::vector<int>> listening_sockets();
Result<std::vector<int>> other_tcp_sockets();
/// This machine's, but for loopback's and those that hold on one link alone.
std::vector<Ip> own_ips();

/// Of "10.0.0.7" and "::1"; an error for a name.
Result<SocketAddress> numeric_socket(const Address& address);
/// Of a name too, by asking who knows, on a thread of its own: `done` is called there.
void resolve(const Address& address, std::function<void(Result<SocketAddress>)> done);
std::string socket_text(const sockaddr_storage& address);

}  // namespace flow::ucx
