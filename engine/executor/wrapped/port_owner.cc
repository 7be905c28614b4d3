#include "engine/executor/wrapped/port_owner.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include "engine/process/listening_socket.hpp"

namespace flow {

PortOwner::Owner PortOwner::look() {
  // A process of the server that forks and ends meanwhile may be missed, once.
  constexpr int kRoundsMax = 3;
  for (int round = 0; round < kRoundsMax; round++) {
    auto found = listening_socket(port_);
    if (!found.ok()) return Owner::unknown;
    if (!*found) return Owner::nobody;
    const ListeningSocket& socket = **found;
    bool is_servers = socket.cookie == socket_ || is_open_in_descendant(::getpid(), socket) ||
                      (is_container_ && socket.user == ::geteuid());
    intruder_ = fmt::format("user {}", socket.user);
    if (!is_servers) continue;
    socket_ = socket.cookie;
    is_public_ = !socket.is_on_loopback;
    return Owner::server;
  }
  return Owner::other;
}

}  // namespace flow
