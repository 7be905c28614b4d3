// The socket that listens at a port of 127.0.0.1, as the kernel describes it to any user.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>

#include "flow/result.hpp"

namespace flow {

struct ListeningSocket {
  /// The kernel's name of it (its cookie): no other socket of this machine gets the same until the
  /// next boot. Not 0.
  uint64_t cookie = 0;
  uint64_t inode = 0;          // as in the links of /proc/PID/fd
  uid_t user = 0;              // that opened it
  bool is_on_loopback = true;  // else it listens at addresses that other machines may reach, too
};

/// The one that gets the connections to 127.0.0.1:PORT now, also if it listens at all addresses, or
/// at those of IPv6. Nothing if nothing listens. Error if this system does not tell.
Result<std::optional<ListeningSocket>> listening_socket(uint16_t port);

/// Whether a living descendant of the process has the socket open. Of a descendant whose
/// descriptors this process may not see, it is enough that the socket is its user's.
bool is_open_in_descendant(pid_t ancestor, const ListeningSocket& socket);

}  // namespace flow
