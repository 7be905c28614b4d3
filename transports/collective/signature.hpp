// The description of a rank's call, by which ranks check that they call the same collective.
#pragma once
#include <cstdint>
#include <string>

#include "flow/collective.hpp"

namespace flow::collective {

/// Its layout in shared memory and on links. `number` counts a communicator's collectives from 1,
/// or the messages from one rank to another.
struct CallSignature {
  uint64_t number = 0;
  int64_t count = 0;
  uint64_t shape = 0, names = 0;
  int16_t peer = 0;
  uint16_t subject = 0;
  uint8_t what = 0, op = 0, dtype = 0;
  uint8_t is_device = 0;  // the data is on GPUs and is transferred between them

  bool operator==(const CallSignature&) const = default;
};

CallSignature signature_of(const CollectiveCall& call, uint64_t number);
/// A send and its receive have the same signature.
CallSignature message_signature(const CollectiveCall& call, uint64_t number);
/// "all_reduce(sum) of 1000 f32"; also of an invalid one from another process.
std::string text_of(const CallSignature& signature);
/// The error on all ranks where two ranks called different collectives.
Error mismatch(int one_rank, const CallSignature& one, int other_rank, const CallSignature& other);

/// The newest call of a rank, for messages about a rank that hangs or has died.
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

/// The rank that a rank waits for, and in which operation.
struct WaitForEdge {
  enum class In : uint8_t { collective, send, recv };

  uint64_t number = 0;  // of its newest collective
  int rank = -1;        // -1: none
  In in = In::collective;

  static WaitForEdge of(uint64_t bits) {
    return {bits >> 18, static_cast<int>(bits & 0xffff) - 1, static_cast<In>(bits >> 16 & 3)};
  }
  uint64_t bits() const {
    return number << 18 | static_cast<uint64_t>(in) << 16 | static_cast<uint64_t>(rank + 1);
  }
};

}  // namespace flow::collective
