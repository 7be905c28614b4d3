// How two ranks prove to each other that they hold their gang's key, and what seals what they say
// then. Pure but for random numbers.
//
// Each says a HELLO: which rank of which gang it is, to which one it speaks, and a nonce. Both
// HELLOs, hashed under the gang's key, give the link's keys, one for each purpose and direction. A
// PROOF is a hash under the sender's own key of these: none fits another link, another attempt or
// the other side. Every frame behind it is sealed, and hangs on all before it.
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

/// Of a message's data. More is bulk: it goes as it is, behind a sealed head, unless a rank wants
/// it sealed too. Sealing 64 KiB takes as long as an all_reduce of them.
constexpr size_t kSealedBytes = size_t{4} << 10;

struct Identity {
  Digest gang;
  std::string key;  // empty: nobody is proven, which loopback alone may be
  int rank = 0, ranks = 1;
  bool encrypts = false;  // bulk goes sealed, and is taken only so
};

/// What is taken: `bulk` lies in the frame.
struct UnsealedFrame {
  std::string control;
  std::string_view bulk;
};

/// One side of a link. One thread at a time, but that what is sent may be sealed beside it.
class GangSeal {
 public:
  /// `peer`: whom this side connects to. Negative: who comes in says it.
  GangSeal(const Identity& identity, int peer);

  /// Of this side, which who is connected to has once it has heard the other one.
  const std::string& hello() const { return ours_; }
  Status receive_hello(std::string_view frame);
  bool has_hello() const { return !theirs_.empty(); }
  int peer() const { return peer_; }
  std::string proof() const;
  Status receive_proof(std::string_view frame);
  bool is_proven() const { return opener_.has_value(); }

  std::string seal(std::string_view control, std::string_view bulk = {});
  Status open(std::string_view frame, UnsealedFrame& opened);
  /// What seals puts; null where they go as they are.
  const std::shared_ptr<const BulkSeal>& bulk() const { return bulk_; }

 private:
  void make_keys(bool encrypts);

  const Identity identity_;
  const bool connects_;
  int peer_;
  std::string ours_, theirs_;     // the HELLOs
  std::optional<LinkKeys> keys_;  // until both are proven
  std::optional<Sealer> sealer_;
  std::optional<Opener> opener_;
  std::shared_ptr<const BulkSeal> bulk_;
};

}  // namespace flow::collective
