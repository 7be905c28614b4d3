#include "transports/ucx/sockets.hpp"

#include <arpa/inet.h>
#include <dirent.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "engine/base/engine_thread.hpp"

namespace flow::ucx {

namespace {

constexpr uint8_t kLoopbackNet = 127;
constexpr uint8_t kMapped[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr Ip kLoopback6 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};

Result<SocketAddress> look_up(const Address& address, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  int error =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return environment_error(
        fmt::format("cannot resolve the host `{}`: {}", address.host, ::gai_strerror(error)));
  }
  SocketAddress socket;
  std::memcpy(&socket.storage, found->ai_addr, found->ai_addrlen);
  socket.size = found->ai_addrlen;
  ::freeaddrinfo(found);
  return socket;
}

}  // namespace

bool is_v4(const Ip& ip) { return std::memcmp(ip.data(), kMapped, sizeof kMapped) == 0; }

bool is_loopback(const Ip& ip) {
  return is_v4(ip) ? ip[sizeof kMapped] == kLoopbackNet : ip == kLoopback6;
}

bool SocketAddress::is_loopback() const { return ucx::is_loopback(ip()); }

SocketAddress SocketAddress::for_ucx() const {
  if (ip() != kLoopback6) return *this;
  SocketAddress four;
  auto& own = reinterpret_cast<sockaddr_in&>(four.storage);
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  four.size = sizeof own;
  four.set_port(port());
  return four;
}

Ip SocketAddress::ip() const {
  Ip ip{};
  if (storage.ss_family == AF_INET) {
    const auto& own = reinterpret_cast<const sockaddr_in&>(storage);
    std::memcpy(ip.data(), kMapped, sizeof kMapped);
    std::memcpy(ip.data() + sizeof kMapped, &own.sin_addr, sizeof own.sin_addr);
  } else if (storage.ss_family == AF_INET6) {
    const auto& own = reinterpret_cast<const sockaddr_in6&>(storage);
    std::memcpy(ip.data(), &own.sin6_addr, sizeof own.sin6_addr);
  }
  return ip;
}

uint16_t SocketAddress::port() const {
  bool is_four = storage.ss_family == AF_INET;
  return ntohs(is_four ? reinterpret_cast<const sockaddr_in&>(storage).sin_port
                       : reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
}

void SocketAddress::set_port(uint16_t port) {
  bool is_four = storage.ss_family == AF_INET;
  (is_four ? reinterpret_cast<sockaddr_in&>(storage).sin_port
           : reinterpret_cast<sockaddr_in6&>(storage).sin6_port) = htons(port);
}

namespace {

SocketAddress unmapped(const SocketAddress& address) {
  Ip ip = address.ip();
  if (address.storage.ss_family != AF_INET6 || !is_v4(ip)) return address;
  SocketAddress four;
  auto& own = reinterpret_cast<sockaddr_in&>(four.storage);
  own.sin_family = AF_INET;
  std::memcpy(&own.sin_addr, ip.data() + sizeof kMapped, sizeof own.sin_addr);
  four.size = sizeof own;
  four.set_port(address.port());
  return four;
}

/// The address that `call`, getsockname or getpeername, returns.
template <typename AddressCall>
SocketAddress end_of(int socket, AddressCall call) {
  SocketAddress end;
  end.size = sizeof end.storage;
  if (call(socket, reinterpret_cast<sockaddr*>(&end.storage), &end.size) != 0) return {};
  return unmapped(end);
}

}  // namespace

SocketAddress own_end(int socket) { return end_of(socket, ::getsockname); }
SocketAddress peer_end(int socket) { return end_of(socket, ::getpeername); }

namespace {

/// 0 if the socket has no such option.
int option_of(int socket, int option) {
  int value = 0;
  socklen_t size = sizeof value;
  return ::getsockopt(socket, SOL_SOCKET, option, &value, &size) == 0 ? value : 0;
}

Result<std::vector<int>> tcp_sockets(bool that_listen) {
  std::vector<int> sockets;
  DIR* all = ::opendir("/proc/self/fd");
  if (all == nullptr) {
    return environment_error(fmt::format("cannot list this process's sockets in /proc/self/fd: {}",
                                         std::strerror(errno)));
  }
  while (const dirent* each = ::readdir(all)) {
    int socket = std::atoi(each->d_name);  // 0 for "." and ".."
    if (option_of(socket, SO_PROTOCOL) != IPPROTO_TCP) continue;
    if ((option_of(socket, SO_ACCEPTCONN) != 0) == that_listen) sockets.push_back(socket);
  }
  ::closedir(all);
  return sockets;
}

}  // namespace

Result<std::vector<int>> listening_sockets() { return tcp_sockets(true); }
Result<std::vector<int>> other_tcp_sockets() { return tcp_sockets(false); }

std::vector<Ip> own_ips() {
  std::vector<Ip> ips;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return ips;
  for (ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    SocketAddress own;
    std::memcpy(&own.storage, each->ifa_addr,
                family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    const auto& six = reinterpret_cast<const sockaddr_in6&>(own.storage);
    bool is_of_one_link = family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six.sin6_addr);
    Ip ip = own.ip();
    bool is_known = std::find(ips.begin(), ips.end(), ip) != ips.end();
    if (!own.is_loopback() && !is_of_one_link && !is_known) ips.push_back(ip);
  }
  ::freeifaddrs(all);
  return ips;
}

Result<SocketAddress> numeric_socket(const Address& address) {
  return look_up(address, AI_NUMERICHOST);
}

void resolve(const Address& address, std::function<void(Result<SocketAddress>)> done) {
  engine_thread([address, done = std::move(done)] { done(look_up(address, 0)); }).detach();
}

std::string socket_text(const sockaddr_storage& address) {
  char host[INET6_ADDRSTRLEN] = "";
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  bool is_v4 = address.ss_family == AF_INET;
  const void* bytes = is_v4 ? static_cast<const void*>(&v4.sin_addr) : &v6.sin6_addr;
  if (::inet_ntop(address.ss_family, bytes, host, sizeof host) == nullptr) return "?:0";
  return address_text({host, ntohs(is_v4 ? v4.sin_port : v6.sin6_port)});
}

}  // namespace flow::ucx
