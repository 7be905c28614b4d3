#include "engine/cluster/session/session_options.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <climits>

#include "engine/base/address.hpp"
#include "engine/cluster/session/secret.hpp"
#include "engine/protocol/schema.hpp"
#include "flow/flow.hpp"

namespace flow {

std::string machine_name() {
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "node";
  std::string text(name);
  for (char& letter : text) {
    if (!cluster::is_process_name({&letter, 1})) letter = '-';
  }
  return cluster::is_process_name(text) ? text : "node";
}

Result<cluster::SessionOptions> session_options(cluster::Role role, const std::string& name,
                                                const std::string& secret_file, bool makes_secret) {
  cluster::SessionOptions options;
  options.role = role;
  options.name = name;
  options.version = version();
  options.schema = cluster::kMessagesSchema;
  auto secret =
      makes_secret ? cluster::read_or_make_secret(secret_file) : cluster::read_secret(secret_file);
  FLOW_TRY(secret);
  options.secret = std::make_shared<const cluster::Secret>(std::move(*secret));
  FLOW_TRY(cluster::check(options));
  return options;
}

namespace {

std::string text_of(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST] = {};
  bool ok = ::getnameinfo(address, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0;
  return ok && !is_loopback(host) ? host : "";
}

/// The address of this machine's host name, if others can reach it.
std::string address_of_name(bool v4_only) {
  char name[NI_MAXHOST] = {};
  addrinfo hints{}, *all = nullptr;
  hints.ai_family = v4_only ? AF_INET : AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  bool ok =
      ::gethostname(name, sizeof name - 1) == 0 && ::getaddrinfo(name, nullptr, &hints, &all) == 0;
  std::string found;
  for (addrinfo* each = ok ? all : nullptr; each != nullptr && found.empty(); each = each->ai_next)
    found = text_of(each->ai_addr, each->ai_addrlen);
  if (ok) ::freeaddrinfo(all);
  return found;
}

/// The source address that this machine would use for other networks.
std::string address_of_route(bool v4_only) {
  auto from = [](const char* there) {
    auto own = local_host_for({there, 0});
    return own.ok() && !is_loopback(*own) ? *own : "";
  };
  // An address from a network that is reserved for documentation.
  std::string found = from("192.0.2.1");
  return found.empty() && !v4_only ? from("2001:db8::1") : found;
}

}  // namespace

Result<std::string> own_address(bool v4_only) {
  for (bool is_v4 : {true, false}) {
    if (!is_v4 && v4_only) break;
    std::string found = address_of_name(is_v4);
    if (found.empty()) found = address_of_route(is_v4);
    if (!found.empty()) return found;
  }
  return environment_error(
      "no address was found at which nodes can reach this machine: its name resolves to a loopback "
      "address only. Name one with --listen HOST:PORT");
}

Result<std::string> numeric_address(const std::string& text) {
  auto address = parse_address(text);
  FLOW_TRY(address);
  addrinfo hints{}, *all = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  int code = ::getaddrinfo(address->host.c_str(), nullptr, &hints, &all);
  if (code != 0)
    return user_error(fmt::format("cannot listen at `{}`: the address of `{}` cannot be found ({})",
                                  text, address->host, ::gai_strerror(code)));
  char host[NI_MAXHOST] = {};
  bool ok = ::getnameinfo(all->ai_addr, all->ai_addrlen, host, sizeof host, nullptr, 0,
                          NI_NUMERICHOST) == 0;
  ::freeaddrinfo(all);
  if (!ok) return user_error(fmt::format("cannot listen at `{}`", text));
  return address_text({host, address->port});
}

Result<std::string> address_for_others(const std::string& listens) {
  auto address = parse_address(listens);
  FLOW_TRY(address);
  bool is_everywhere = address->host == "0.0.0.0" || address->host == "::";
  if (!is_everywhere) return listens;
  auto own = own_address(address->host == "0.0.0.0");
  FLOW_TRY(own);
  return address_text({*own, address->port});
}

std::string address_for_users(const std::string& listens) {
  auto reached = address_for_others(listens);
  if (reached.ok()) return *reached;
  auto address = parse_address(listens);
  if (!address.ok()) return listens;
  return address_text({address->host == "::" ? "::1" : "127.0.0.1", address->port});
}

}  // namespace flow
