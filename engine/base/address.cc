#include "engine/base/address.hpp"

#include <fmt/format.h>

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

namespace flow {

Result<Address> parse_address(std::string_view text) {
  Error wrong = user_error(fmt::format(
      "`{}` is not an address: write a host and a port, as in `10.0.0.7:7700` or `[::1]:7700`",
      text));
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

// A datagram's socket that is connected sends nothing, and has the address it would send from.
Result<std::string> local_host_for(const Address& remote) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  constexpr const char* kAnyPort = "9";
  int code = ::getaddrinfo(remote.host.c_str(), kAnyPort, &hints, &found);
  if (code != 0)
    return environment_error(
        fmt::format("cannot find the address of `{}`: {}", remote.host, ::gai_strerror(code)));
  std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> freed(found, ::freeaddrinfo);
  std::string why = "no route to it";
  for (addrinfo* each = found; each != nullptr; each = each->ai_next) {
    int descriptor = ::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0) continue;
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    auto* own_address = reinterpret_cast<sockaddr*>(&own);
    char host[NI_MAXHOST];
    bool ok = ::connect(descriptor, each->ai_addr, each->ai_addrlen) == 0 &&
              ::getsockname(descriptor, own_address, &size) == 0 &&
              ::getnameinfo(own_address, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0;
    if (!ok) why = std::strerror(errno);
    ::close(descriptor);
    if (ok) return std::string(host);
  }
  return environment_error(fmt::format("no route to `{}`: {}", remote.host, why));
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == host.npos);
}

}  // namespace flow
