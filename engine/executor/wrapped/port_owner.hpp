// Whose socket listens at the port that a server was given: another user of the machine may take it
// first, and would get the requests.
#pragma once
#include <cstdint>
#include <string>

namespace flow {

class PortOwner {
 public:
  enum class Owner : uint8_t {
    nobody,
    server,   // a descendant of this process
    other,    // another process
    unknown,  // the system does not tell
  };

  /// `is_container`: the server may be the child of a daemon; then it is enough that the socket is
  /// of the user of this process.
  PortOwner(uint16_t port, bool is_container) : port_(port), is_container_(is_container) {}

  /// Looks again.
  Owner look();
  /// Of the socket that the last look() found to be the server's: the kernel's name of it, which no
  /// other socket gets. 0: none was.
  uint64_t socket() const { return socket_; }
  /// Whether other machines may reach this socket.
  bool is_public() const { return is_public_; }
  /// "user 1000", of Owner::other.
  const std::string& intruder() const { return intruder_; }

 private:
  const uint16_t port_;
  const bool is_container_;
  uint64_t socket_ = 0;
  bool is_public_ = false;
  std::string intruder_;
};

}  // namespace flow
