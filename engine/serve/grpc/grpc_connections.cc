#include "engine/serve/grpc/grpc_connections.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>

namespace flow {

namespace {

// Between two looks for closed connections: each takes a system call per connection.
constexpr auto kLookEvery = std::chrono::milliseconds(50);

std::optional<ino_t> inode_of(int socket) {
  struct stat info {};
  if (::fstat(socket, &info) != 0) return std::nullopt;
  return info.st_ino;
}

/// Ends the connection; its owner then closes the descriptor.
void end_connection(int socket, ino_t inode) {
  // The owner may close it at any time, and another file may get its number: a copy stays the same.
  int copy = ::fcntl(socket, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return;
  if (inode_of(copy) == inode) ::shutdown(copy, SHUT_RDWR);
  ::close(copy);
}

}  // namespace

std::string peer_of(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    return fmt::format("ipv4:{}:{}", text, ntohs(v4.sin_port));
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    ::inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof text);
    return fmt::format("ipv4:{}:{}", text, ntohs(v6.sin6_port));
  }
  ::inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
  std::string scope;
  if (v6.sin6_scope_id != 0) scope = fmt::format("%25{}", v6.sin6_scope_id);
  return fmt::format("ipv6:%5B{}{}%5D:{}", text, scope, ntohs(v6.sin6_port));
}

bool GrpcConnections::add(int socket, const std::string& peer, Clock::time_point now) {
  std::optional<ino_t> inode = inode_of(socket);
  if (!inode) return false;
  std::lock_guard lock(mutex_);
  if (connections_.size() >= max_) remove_closed(now);
  if (connections_.size() >= max_ && !evict_oldest(now)) return false;
  connections_.emplace(peer, Connection{socket, *inode, now});
  return true;
}

void GrpcConnections::trust(const std::string& peer) {
  std::lock_guard lock(mutex_);
  auto [first, last] = connections_.equal_range(peer);
  for (auto each = first; each != last; ++each) each->second.is_trusted = true;
}

void GrpcConnections::remove_closed(Clock::time_point now) {
  if (now < next_look_) return;
  next_look_ = now + kLookEvery;
  std::erase_if(connections_,
                [](const auto& each) { return inode_of(each.second.socket) != each.second.inode; });
}

bool GrpcConnections::evict_oldest(Clock::time_point now) {
  auto oldest = connections_.end();
  for (auto each = connections_.begin(); each != connections_.end(); ++each) {
    if (each->second.is_trusted) continue;
    if (oldest == connections_.end() || each->second.since < oldest->second.since) oldest = each;
  }
  if (oldest == connections_.end() || oldest->second.since + patience_ > now) return false;
  end_connection(oldest->second.socket, oldest->second.inode);
  connections_.erase(oldest);
  return true;
}

}  // namespace flow
