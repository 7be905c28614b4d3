#include "engine/base/address.hpp"

#include <fmt/format.h>

#include <charconv>

namespace flow {

Result<Address> parse_address(std::string_view text) {
  Error wrong = user_error(fmt::format(
      "`{}` is no address. It is a host and a port, as in `10.0.0.7:7700` or `[::1]:7700`", text));
  size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong;
  std::string_view host = text.substr(0, colon), digits = text.substr(colon + 1);
  bool is_bracketed = host.starts_with('[') && host.ends_with(']');
  if (is_bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || (!is_bracketed && host.find(':') != std::string_view::npos)) return wrong;
  if (host.find_first_of(std::string_view("[]/ \t\n\0", 7)) != std::string_view::npos) return wrong;
  Address address{std::string(host), 0};
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), address.port);
  if (error != std::errc() || end != digits.data() + digits.size()) return wrong;
  return address;
}

std::string address_text(const Address& address) {
  bool has_colons = address.host.find(':') != std::string::npos;
  return has_colons ? fmt::format("[{}]:{}", address.host, address.port)
                    : fmt::format("{}:{}", address.host, address.port);
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == host.npos);
}

}  // namespace flow
