// How two ranks prove to each other that they hold their gang's key, and how their frames are
// sealed after that. Pure except for random numbers.
//
// Each side sends a HELLO: its gang and rank, the rank it addresses, and a nonce. Both HELLOs,
// hashed under the gang's key, give the link's keys, one for each purpose and direction. A PROOF is
// a hash under the sender's own key: it is invalid on another link, in another attempt and from the
// other side. Every later frame is sealed and depends on all frames before it.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/crypto/seal.hpp"
#include "flow/digest.hpp"
#include "flow/result.hpp"
#include "transports/collective/frames.hpp"

namespace flow::collective {

/// Largest message whose data is sealed. Larger data is bulk: it is sent unencrypted behind a
/// sealed header, unless `encrypts` is set. Sealing 64 KiB takes as long as an all_reduce of 64
/// KiB.
constexpr size_t kSealedBytes = size_t{4} << 10;

struct RankIdentity {
  Digest gang;
  std::string key;  // empty: no proof, allowed on loopback only
  int rank = 0, ranks = 1;
  bool encrypts = false;  // bulk data is encrypted, and accepted only so
};

/// A received frame: `bulk` points into it.
struct UnsealedFrame {
  std::string control;
  std::string_view bulk;
};

/// One side of a link. One thread at a time; only sealing may run concurrently with the rest.
class GangSeal {
 public:
  /// `peer`: the rank to connect to. Negative: the incoming peer names its rank.
  GangSeal(const RankIdentity& identity, int peer);

  /// This side's HELLO; an accepting side has it only after the peer's HELLO arrived.
  const std::string& hello() const { return own_hello_; }
  Status receive_hello(std::string_view frame);
  bool has_hello() const { return !peer_hello_.empty(); }
  int peer() const { return peer_; }
  std::string proof() const;
  Status receive_proof(std::string_view frame);
  bool is_proven() const { return opener_.has_value(); }

  std::string seal(std::string_view control, std::string_view bulk = {});
  Status open(std::string_view frame, UnsealedFrame& opened);
  /// The cipher for puts; null if they are not encrypted.
  const std::shared_ptr<const BulkSeal>& bulk() const { return bulk_; }

 private:
  void make_keys(bool encrypts);

  const RankIdentity identity_;
  const bool connects_;
  int peer_;
  std::string own_hello_, peer_hello_;  // the HELLOs
  std::optional<LinkKeys> keys_;        // until both are proven
  std::optional<Sealer> sealer_;
  std::optional<Opener> opener_;
  std::shared_ptr<const BulkSeal> bulk_;
};

}  // namespace flow::collective
