// Numeric addresses as sockets take them, and why a service cannot listen on one.
#pragma once
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

#include "engine/base/address.hpp"
#include "flow/result.hpp"

namespace flow {

/// An address with its port, for bind().
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  bool is_v6 = false;
};

/// Nothing if the text is no numeric address.
std::optional<SocketAddress> socket_address(const std::string& text, uint16_t port);

/// Tries to listen; 0 if that is possible, else the error's code.
int listening_problem(const Address& address);

struct ListeningSocket {
  int socket = -1;  // it does not block; the caller closes it
  uint16_t port = 0;
  bool is_v6 = false;
};

/// Listens for TCP connections, which do not delay small packets. The Error names the service and
/// says what to do; see listening_error().
Result<ListeningSocket> listen_at(const std::string& service, const Address& address,
                                  const char* free_port);

/// What the code means for a service, and what to do. `free_port` is the option that takes a free
/// port, for the message.
Error listening_error(const std::string& service, const Address& address, int code,
                      const char* free_port);

}  // namespace flow
