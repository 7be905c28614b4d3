// Where a process listens: a host and a port.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "flow/result.hpp"

namespace flow {

struct Address {
  std::string host;  // a name, or numbers; of IPv6 without the brackets
  uint16_t port = 0;
};

/// "node7:7700", "10.0.0.7:7700", "[::1]:7700".
Result<Address> parse_address(std::string_view text);
/// With brackets where the host has colons.
std::string address_text(const Address& address);
/// This machine's address on the way there; the Error says why there is none.
Result<std::string> local_host_for(const Address& remote);
/// Whether it names this machine to itself alone.
bool is_loopback(std::string_view host);

}  // namespace flow
