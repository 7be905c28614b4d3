// What two processes say at a door, before UCX hears of either: each proves that it holds the key,
// and then the one that was called says where UCX awaits the other. Nothing here waits or sends.
//
// The client says its HELLO: version, nonce, its machine's addresses. The server says its own and
// its PROOF, the client its PROOF, the server the PLACE. A proof is an HMAC under the key over both
// HELLOs and who says it: none fits another talk, another HELLO or the other side.
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
constexpr size_t kAdvertisedIpsMax = 64;  // of a machine; the others are not told

/// Where more come to a door who have not proven themselves, the first of them is forgotten.
constexpr size_t kPendingMax = 256;

class AuthHandshake {
 public:
  enum class Side : uint8_t { client, server };

  /// `key`: "" where nobody has to prove anything. `own`: this machine's addresses.
  AuthHandshake(Side side, std::string key, const std::vector<Ip>& own);

  /// What a client begins with.
  const std::string& hello() const { return ours_; }
  /// What came, in any pieces. `reply` gets what is to be said to it, where the talk fails too:
  /// the peer is refused, and the error is the user's to mend.
  Status receive(std::string_view bytes, std::string& reply);
  /// The peer holds the key.
  bool is_proven() const { return step_ == Step::port || step_ == Step::done; }
  /// The peer's machine's addresses, as it says; of one that is proven.
  const std::vector<Ip>& peer_ips() const { return peer_ips_; }

  /// Of a server, to a client that is proven.
  std::string port_message(uint16_t port) const;
  /// Of a client: where UCX awaits it; 0 while it was not told.
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
  std::string partial_;  // of a message that is not whole
  std::string ours_, theirs_;
  std::vector<Ip> peer_ips_;
  uint16_t port_ = 0;
};

}  // namespace flow::ucx
