#include "transports/ucx/sockets.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cstring>
#include <memory>
#include <utility>

#include "engine/base/engine_thread.hpp"

namespace flow::ucx {

namespace {

constexpr uint32_t kLoopbackNet = 127;
constexpr int kHostBits = 24;

Result<SocketAddress> look_up(const Address& address, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  int error =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return environment_error(
        fmt::format("no host is called `{}`: {}", address.host, ::gai_strerror(error)));
  }
  SocketAddress socket;
  std::memcpy(&socket.storage, found->ai_addr, found->ai_addrlen);
  socket.size = found->ai_addrlen;
  ::freeaddrinfo(found);
  return socket;
}

}  // namespace

bool SocketAddress::is_loopback() const {
  if (storage.ss_family == AF_INET) {
    const auto& own = reinterpret_cast<const sockaddr_in&>(storage);
    return ntohl(own.sin_addr.s_addr) >> kHostBits == kLoopbackNet;
  }
  const auto& own = reinterpret_cast<const sockaddr_in6&>(storage);
  return storage.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&own.sin6_addr);
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
