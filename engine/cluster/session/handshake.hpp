// Mutual authentication of two processes of a cluster by its secret: a worker and its head, a peer
// and a worker, a client and a head. Pure but for the random numbers of a HELLO.
//
// Both sides immediately send a HELLO: versions, role, name, a nonce, and an ephemeral X25519 key.
// The session's keys, one per purpose and direction, are derived from both HELLOs and the key
// exchange, keyed with the secret. A PROOF is a hash of both HELLOs under one of the sender's keys:
// it cannot be made without the secret, and it is valid for no other session, HELLO or role. After
// the PROOFs all frames are sealed.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/cluster/session/secret.hpp"
#include "flow/result.hpp"

namespace flow::cluster {

// Version of the session's own frames. The schema of messages has its own (SessionHello::schema).
constexpr uint16_t kProtocolMin = 1, kProtocolMax = 1;
constexpr size_t kHandshakeBytesMax = 1024;  // of a frame
constexpr size_t kProcessNameBytesMax = 128, kVersionBytesMax = 64;

enum class FrameType : uint8_t { hello = 1, proof, message, heartbeat, goodbye };

/// A peer is a worker that downloads blobs from another worker; a client submits runs to a head.
enum class Role : uint8_t { head = 1, worker = 2, peer = 3, client = 4 };
const char* role_name(Role role);

/// The content of a HELLO.
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
  /// With a null `secret` the peers are not authenticated; everything else is the same.
  Handshake(SessionHello ours, std::shared_ptr<const Secret> secret);

  const std::string& hello() const { return hello_; }
  /// Parses the peer's HELLO and derives the keys. Error if the versions are incompatible.
  Result<SessionHello> accept_hello(std::string_view frame);
  /// The greatest protocol version that both sides support.
  uint16_t protocol() const { return protocol_; }
  const LinkKeys& keys() const { return *keys_; }
  /// This side's PROOF. `header` is the header of its sealed frames.
  std::string proof(std::string_view header) const;
  /// Verifies the peer's PROOF and returns its header. Error if the peer does not hold the secret.
  Result<std::string> accept_proof(std::string_view frame) const;

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
