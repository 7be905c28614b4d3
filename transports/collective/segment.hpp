// The memory that a rank shares with those on its node. Each makes one of its own, and maps those
// of the others: nobody has to be first, and nothing is left behind when all are gone.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "flow/digest.hpp"
#include "flow/result.hpp"
#include "transports/collective/signature.hpp"

namespace flow::collective {

/// What a rank brings at a time; twice, and twice for what it gives: all four stay in its core's
/// cache.
constexpr size_t kRoundBytes = size_t{256} << 10;
constexpr size_t kCauseBytes = 1024;
constexpr size_t kLine = 64;  // of a cache: what different ranks write lies in different ones

/// A rank has joined when it has mapped what all others share.
enum class RankState : uint32_t { joining, joined, left, failed };

/// What the other ranks look at.
struct Control {
  uint64_t magic = 0;
  uint8_t gang[32] = {};
  int32_t rank = 0, ranks = 0;

  alignas(kLine) std::atomic<uint64_t> step{0};      // places where all meet, passed or reached
  alignas(kLine) std::atomic<uint32_t> doorbell{0};  // whoever waits sleeps on this
  std::atomic<uint32_t> is_waiting{0};
  alignas(kLine) std::atomic<uint64_t> last_call{0};
  std::atomic<uint64_t> wait_edge{0};      // a Waits, since it takes long
  std::atomic<uint32_t> has_ended{0};      // it leaves, and has no message under way
  alignas(kLine) Signature signatures[2];  // of this and the next collective within the node
  alignas(kLine) std::atomic<RankState> state{RankState::joining};
  std::atomic<uint32_t> cause_kind{0}, cause_size{0};
  char cause[kCauseBytes] = {};  // there before `state` is failed
};

/// One direction between two ranks of a node: the sender's head, the receiver's tail. Lies in the
/// sender's segment.
struct Pipe {
  alignas(kLine) std::atomic<uint64_t> head{0};
  alignas(kLine) std::atomic<uint64_t> tail{0};
  alignas(kLine) char data[1];
};

/// Messages of users and those of collectives do not wait for each other.
enum class ChannelKind : uint8_t { user, collective };
constexpr int kChannelKinds = 2;

class Segment {
 public:
  Segment() = default;
  Segment(Segment&& other) noexcept { *this = std::move(other); }
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  static Result<Segment> make(const Digest& gang, int rank, int ranks);
  /// Of a process of the same user, under the number that it has for it.
  static Result<Segment> open(int pid, int descriptor, const Digest& gang, int rank, int ranks);

  int descriptor() const { return descriptor_; }
  Control& control() const { return *reinterpret_cast<Control*>(data_); }
  char* input_buffer(uint64_t round) const;
  char* output_buffer(uint64_t round) const;
  Pipe& pipe(ChannelKind channel, int to_rank) const;
  size_t pipe_bytes() const { return pipe_bytes_; }

 private:
  Status map(int ranks);

  int descriptor_ = -1;
  char* data_ = nullptr;
  size_t size_ = 0, pipe_bytes_ = 0;
  int ranks_ = 0;
};

}  // namespace flow::collective
