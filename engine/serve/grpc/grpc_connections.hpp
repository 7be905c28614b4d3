// The open connections of a gRPC server: how many there may be, and which of them may be closed for
// another one.
#pragma once
#include <sys/socket.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <mutex>
#include <string>
#include <unordered_map>

namespace flow {

/// The other end of a connection as gRPC names it: the text of a URI.
std::string peer_of(const sockaddr_storage& address);

/// If all places are taken, a new connection takes that of the oldest one whose client has sent no
/// call with a valid key, unless that one is younger than `patience`. Thread-safe.
class GrpcConnections {
 public:
  using Clock = std::chrono::steady_clock;

  GrpcConnections(size_t max, Clock::duration patience) : max_(max), patience_(patience) {}

  /// Gives a place to a socket that gRPC will own; false if there is none.
  bool add(int socket, const std::string& peer, Clock::time_point now);
  /// The client at `peer` has sent a call with a valid key: its connection keeps its place.
  void trust(const std::string& peer);

 private:
  /// The inode tells whether the descriptor is still that of the socket.
  struct Connection {
    int socket;
    ino_t inode;
    Clock::time_point since;
    bool is_trusted = false;
  };

  void remove_closed(Clock::time_point now);
  bool evict_oldest(Clock::time_point now);

  const size_t max_;
  const Clock::duration patience_;
  std::mutex mutex_;
  // Up to max_, some of them closed. A client may use one port for several addresses of the server.
  std::unordered_multimap<std::string, Connection> connections_;
  Clock::time_point next_look_;  // for closed ones
};

}  // namespace flow
