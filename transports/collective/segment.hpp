// The memory that a rank shares with the other ranks of its node. Each rank creates one segment and
// maps those of the others: no rank has to be first, and nothing remains when all have exited.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "flow/digest.hpp"
#include "flow/result.hpp"
#include "transports/collective/signature.hpp"

namespace flow::collective {

/// Data that a rank copies in per round. Two input and two output buffers of this size fit in a
/// core's cache.
constexpr size_t kRoundBytes = size_t{256} << 10;
constexpr size_t kCauseBytes = 1024;
constexpr size_t kLine = 64;  // cache line: data written by different ranks is in different lines

/// A rank has joined when it has mapped all other segments.
enum class RankState : uint32_t { joining, joined, left, failed };

/// The part that other ranks read.
struct Control {
  uint64_t magic = 0;
  uint8_t gang[32] = {};
  int32_t rank = 0, ranks = 0;

  alignas(kLine) std::atomic<uint64_t> step{0};      // barriers passed or reached
  alignas(kLine) std::atomic<uint32_t> doorbell{0};  // a waiting rank sleeps on this
  std::atomic<uint32_t> is_waiting{0};
  alignas(kLine) std::atomic<uint64_t> last_call{0};
  std::atomic<uint64_t> wait_edge{0};          // a WaitForEdge, once the wait is long
  std::atomic<uint32_t> has_ended{0};          // the rank leaves, and has no message in flight
  alignas(kLine) CallSignature signatures[2];  // of this and the next collective within the node
  alignas(kLine) std::atomic<RankState> state{RankState::joining};
  std::atomic<uint32_t> cause_kind{0}, cause_size{0};
  char cause[kCauseBytes] = {};  // set before `state` is failed
};

/// One direction between two ranks of a node: head written by the sender, tail by the receiver. It
/// is part of the sender's segment.
struct ShmPipe {
  alignas(kLine) std::atomic<uint64_t> head{0};
  alignas(kLine) std::atomic<uint64_t> tail{0};
  alignas(kLine) char data[1];
};

/// Users' messages and those of collectives do not wait for each other.
enum class ChannelKind : uint8_t { user, collective };
constexpr int kChannelKinds = 2;

class Segment {
 public:
  Segment() = default;
  Segment(Segment&& other) noexcept { *this = std::move(other); }
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  static Result<Segment> make(const Digest& gang, int rank, int ranks);
  /// Opens a segment of a process of the same user, by its descriptor in that process.
  static Result<Segment> open(int pid, int descriptor, const Digest& gang, int rank, int ranks);

  int descriptor() const { return descriptor_; }
  Control& control() const { return *reinterpret_cast<Control*>(data_); }
  char* input_buffer(uint64_t round) const;
  char* output_buffer(uint64_t round) const;
  ShmPipe& pipe(ChannelKind channel, int to_rank) const;
  size_t pipe_bytes() const { return pipe_bytes_; }

 private:
  Status map(int ranks);

  int descriptor_ = -1;
  char* data_ = nullptr;
  size_t size_ = 0, pipe_bytes_ = 0;
  int ranks_ = 0;
};

}  // namespace flow::collective
