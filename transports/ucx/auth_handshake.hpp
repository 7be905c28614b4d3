// The handshake that runs before any data of a peer reaches UCX: each side proves that it holds the
// key, then the server sends the port on which UCX listens for the client. This class performs no
// I/O.
//
// The client sends its HELLO: version, nonce, addresses of its machine. The server sends its own
// HELLO and its PROOF, the client its PROOF, the server the PORT with an HMAC. Each message is
// preceded by its length. A proof is an HMAC under the key over both HELLOs and the sender's side,
// so it cannot be replayed in another handshake or sent back to its sender.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flow/digest.hpp"
#include "flow/result.hpp"
#include "transports/ucx/sockets.hpp"

namespace flow::ucx {

constexpr uint32_t kHandshakeVersion = 1;
constexpr size_t kAdvertisedIpsMax = 64;  // per machine; further ones are not sent

/// A listener keeps at most this many unauthenticated connections; a further one evicts the oldest.
constexpr size_t kPendingMax = 256;

/// Not thread-safe.
class AuthHandshake {
 public:
  enum class Side : uint8_t { client, server };

  /// `key`: the same on both sides. With the key "" the messages are the same, but any peer passes.
  /// `own`: this machine's addresses.
  AuthHandshake(Side side, std::string key, const std::vector<Ip>& own);

  /// The message that a client sends first. A server's is part of the first reply.
  const std::string& hello() const { return own_hello_; }
  /// Processes received bytes, split at any position, and appends the answer to `reply`. Send the
  /// answer also if this returns an error: from the server's HELLO a rejected client learns the
  /// reason. All errors are of kind `user` and end the handshake.
  Status receive(std::string_view bytes, std::string& reply);
  /// Whether the peer's proof was valid.
  bool is_proven() const { return step_ == Step::port || step_ == Step::done; }
  /// The addresses of the peer's machine, as it sent them. Use them only if is_proven().
  const std::vector<Ip>& peer_ips() const { return peer_ips_; }

  /// The PORT message, which a server sends after the client's proof. Requires is_proven().
  std::string port_message(uint16_t port) const;
  /// At a client: the port on which the server's UCX listens; 0 until it is received.
  uint16_t port() const { return port_; }

 private:
  enum class Step : uint8_t { hello, proof, port, done };
  Status receive_message(std::string_view message, std::string& reply);
  Status receive_hello(std::string_view message, std::string& reply);
  Status receive_proof(std::string_view message);
  Status receive_port(std::string_view message);
  Digest mac(std::string_view what, std::string_view more = {}) const;
  std::string proof(Side side) const;

  const Side side_;
  const std::string key_;
  Step step_ = Step::hello;
  std::string partial_;  // an incomplete message
  std::string own_hello_, peer_hello_;
  std::vector<Ip> peer_ips_;
  uint16_t port_ = 0;
};

}  // namespace flow::ucx
