// What a rank says of a call of its own, so that the others can tell whether it is the same.
#pragma once
#include <cstdint>
#include <string>

#include "flow/collective.hpp"

namespace flow::collective {

/// As it lies in shared memory and goes over links. `number` counts a communicator's collectives
/// from 1, or what one rank sends another.
struct Signature {
  uint64_t number = 0;
  int64_t count = 0;
  uint64_t shape = 0, names = 0;
  int16_t peer = 0;
  uint16_t subject = 0;
  uint8_t what = 0, op = 0, dtype = 0;
  uint8_t is_device = 0;  // its data lies on GPUs, and moves there

  bool operator==(const Signature&) const = default;
};

Signature signature_of(const CollectiveCall& call, uint64_t number);
/// Sending and receiving are the same call then.
Signature message_signature(const CollectiveCall& call, uint64_t number);
/// "all_reduce(sum) of 1000 f32"; of anything that came from elsewhere too.
std::string text_of(const Signature& signature);
/// What all are told where two ranks called different things.
Error mismatch(int one_rank, const Signature& one, int other_rank, const Signature& other);

/// The newest call of a rank: what is told of one that hangs or has died.
class LastCall {
 public:
  LastCall() = default;
  explicit LastCall(uint64_t bits) : bits_(bits) {}
  LastCall(Collective what, uint64_t number, bool is_inside)
      : bits_(number << 8 | static_cast<uint64_t>(what) << 1 | (is_inside ? 1 : 0)) {}
  uint64_t bits() const { return bits_; }
  uint64_t number() const { return bits_ >> 8; }
  bool is_inside() const { return (bits_ & 1) != 0; }
  RankProgress rank_progress() const;
  /// "it was last in barrier #16", "it has called nothing yet".
  std::string text() const;

 private:
  uint64_t bits_ = 0;
};

/// For whom a rank waits, and in what: it is not to blame then.
struct WaitForEdge {
  enum class In : uint8_t { collective, send, recv };

  uint64_t number = 0;  // of its newest collective
  int rank = -1;        // -1: it waits for nobody
  In in = In::collective;

  static WaitForEdge of(uint64_t bits) {
    return {bits >> 18, static_cast<int>(bits & 0xffff) - 1, static_cast<In>(bits >> 16 & 3)};
  }
  uint64_t bits() const {
    return number << 18 | static_cast<uint64_t>(in) << 16 | static_cast<uint64_t>(rank + 1);
  }
};

}  // namespace flow::collective
