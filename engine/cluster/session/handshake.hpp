// How two processes of a cluster prove to each other that they hold its secret: a worker to its
// head, a peer to a worker, a client to a head. Pure but for the random numbers of a Greeting.
//
// Both send a HELLO at once: versions, role, name, a nonce, and a key of X25519 made for this
// session alone. What both said and what the exchange comes to, hashed under the secret, gives the
// session's keys, one for each purpose and direction. A PROOF is a hash of both HELLOs under the
// sender's own key of these, so nobody makes one who lacks the secret, and none fits another
// session, another HELLO or the other role. After the PROOFs everything is sealed.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/cluster/session/secret.hpp"
#include "flow/result.hpp"

namespace flow::cluster {

// Of the session's own frames; what messages hold has a number of its own (Greeting::schema).
constexpr uint16_t kProtocolMin = 1, kProtocolMax = 1;
constexpr size_t kHandshakeBytesMax = 1024;  // of a frame
constexpr size_t kProcessNameBytesMax = 128, kVersionBytesMax = 64;

enum class FrameType : uint8_t { hello = 1, proof, message, heartbeat, goodbye };

/// A peer is a worker that wants content of another one; a client gives a head runs.
enum class Role : uint8_t { head = 1, worker = 2, peer = 3, client = 4 };
const char* role_name(Role role);

/// What a HELLO says.
struct SessionHello {
  uint16_t protocol_min = kProtocolMin, protocol_max = kProtocolMax;
  std::string version;  // of flow
  uint32_t schema = 0;  // of the messages: both must have the same
  Role role = Role::worker;
  bool has_secret = false;
  uint64_t epoch = 0;  // which life of the node this is
  std::string name;    // 1 to 128 of [A-Za-z0-9._+-]
  std::string nonce, key;
};

bool is_process_name(std::string_view name);

/// One side's handshake.
class Handshake {
 public:
  /// `secret` null: nobody is proven, everything else is the same.
  Handshake(SessionHello ours, std::shared_ptr<const Secret> secret);

  const std::string& hello() const { return hello_; }
  /// The peer's greeting, where the two can talk; then there are keys.
  Result<SessionHello> take_hello(std::string_view frame);
  /// The greatest version that both know.
  uint16_t protocol() const { return protocol_; }
  const LinkKeys& keys() const { return *keys_; }
  /// `header` is what this side's sealed frames begin with.
  std::string proof(std::string_view header) const;
  /// The header of the peer's; an error where it does not know the secret.
  Result<std::string> take_proof(std::string_view frame) const;

 private:
  Result<SessionHello> read_hello(std::string_view frame);
  Status agree_on_version(const SessionHello& theirs);
  Status check(const SessionHello& theirs) const;
  bool make_keys(std::string_view their_hello, const SessionHello& theirs);

  SessionHello ours_;
  std::shared_ptr<const Secret> secret_;
  std::optional<KeyExchange> exchange_;  // gone with the HELLO that was answered
  std::string hello_;
  uint16_t protocol_ = 0;
  std::optional<LinkKeys> keys_;
};

}  // namespace flow::cluster
