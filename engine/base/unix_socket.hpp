// Unix sockets that processes of one user find by a path of any length.
#pragma once
#include <sys/types.h>

#include <string>

#include "flow/result.hpp"

namespace flow {

/// Connects; the caller owns the descriptor. A listener with a full queue is waited for.
Result<int> connect_unix(const std::string& path);
/// Listens with mode 0600; the caller owns the descriptor. A file at `path` is removed first. The
/// path of a Unix socket has at most 107 bytes; a longer one goes through a descriptor of its
/// folder, so only the file's name must be short.
Result<int> listen_unix(const std::string& path);
/// The process at the other end: the one that connected, or the one that listens. 0 if it belongs
/// to another user.
pid_t peer_of(int descriptor);

}  // namespace flow
