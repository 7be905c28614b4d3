// Addresses as sockets have them.
#pragma once
#include <sys/socket.h>

#include <functional>
#include <string>

#include "engine/base/address.hpp"
#include "flow/result.hpp"

namespace flow::ucx {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool is_loopback() const;
};

/// Of "10.0.0.7" and "::1"; an error for a name.
Result<SocketAddress> numeric_socket(const Address& address);
/// Of a name too, by asking who knows, on a thread of its own: `done` is called there.
void resolve(const Address& address, std::function<void(Result<SocketAddress>)> done);
std::string socket_text(const sockaddr_storage& address);

}  // namespace flow::ucx
