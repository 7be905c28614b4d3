// Addresses: a host and a port.
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
/// The address as text, with brackets around a host with colons.
std::string address_text(const Address& address);
/// This machine's source address for connections to `remote`; the error says why there is none.
Result<std::string> local_host_for(const Address& remote);
/// Whether the host is a loopback address or name.
bool is_loopback(std::string_view host);

}  // namespace flow
