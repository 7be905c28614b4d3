// The handshake before UCX gets any data of a peer: each side proves that it holds the key, then
// the server sends the port at which UCX awaits the client. Nothing here waits or sends.
//
// The client sends its HELLO: version, nonce, addresses of its machine. The server sends its own
// HELLO and its PROOF, the client its PROOF, the server the PORT. A proof is an HMAC under the key
// over both HELLOs and the sender's side: it is invalid in another handshake, for another HELLO and
// from the other side.
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

/// If more unauthenticated connections are pending, the oldest is dropped.
constexpr size_t kPendingMax = 256;

class AuthHandshake {
 public:
  enum class Side : uint8_t { client, server };

  /// `key`: "" if no proof is needed. `own`: this machine's addresses.
  AuthHandshake(Side side, std::string key, const std::vector<Ip>& own);

  /// The first message of a client.
  const std::string& hello() const { return own_hello_; }
  /// Processes received bytes, split at any position. `reply` gets the answer, also on failure: the
  /// peer is rejected, and the error is one that a user must fix.
  Status receive(std::string_view bytes, std::string& reply);
  /// The peer holds the key.
  bool is_proven() const { return step_ == Step::port || step_ == Step::done; }
  /// The addresses of the peer's machine, as it sent them; of an authenticated peer.
  const std::vector<Ip>& peer_ips() const { return peer_ips_; }

  /// Of a server, to an authenticated client.
  std::string port_message(uint16_t port) const;
  /// Of a client: the port at which UCX awaits it; 0 until it is received.
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
