// Collectives over point-to-point messages between ranks on any nodes: trees and recursive doubling
// for small data, rings for large data.
#pragma once
#include <cstddef>
#include <vector>

#include "transports/collective/messages.hpp"
#include "transports/collective/reduce.hpp"

namespace flow::collective {

/// Called by the thread that executes calls. All return false if the communicator has failed. The
/// caller converts f16 and bf16 data to f32.
class MessageCollectives {
 public:
  /// Among `ranks`, in that order; this rank is one of them.
  MessageCollectives(CommunicatorState& state, Messages& messages, std::vector<int> ranks);

  void begin(const CallSignature& call) { call_ = call; }
  /// In place.
  bool all_reduce(const Reducer& how, void* data, size_t count);
  /// `data`: `count` elements per rank; this rank's slice is reduced in place, the others are
  /// overwritten.
  bool reduce_scatter(const Reducer& how, void* data, size_t count);
  /// `data`: one block of `bytes` per rank, of which this rank's is set.
  bool all_gather(void* data, size_t bytes);
  bool broadcast(void* data, size_t bytes, int root);
  bool all_to_all(const void* from, void* to, size_t bytes);
  bool barrier();

 private:
  /// In step s a rank sends slice me - shift - s to the next rank and receives the slice before
  /// that from the previous rank; in the first `reducing_steps` steps it reduces received data with
  /// its own.
  struct Ring {
    char* data = nullptr;
    size_t count = 0, element = 1;
    int shift = 0, steps = 0, reducing_steps = 0;
    Reducer how;
  };
  struct Chunk {
    char* data = nullptr;
    size_t count = 0;
  };
  class RingRun;

  bool run_ring(const Ring& ring);

  bool doubling(const Reducer& how, char* data, size_t count);
  bool tree(char* data, size_t bytes, int root);
  bool chain(char* data, size_t bytes, int root);
  bool exchange_all(char* data, size_t bytes);

  int at(int index) const {
    return ranks_[static_cast<size_t>((index % count_ + count_) % count_)];
  }
  void send(int index, const void* data, size_t bytes, Transfer& transfer);
  void receive(int index, void* data, size_t bytes, Transfer& transfer);
  bool wait(const Transfer& transfer, int index);
  bool swap(int index, const void* out, void* in, size_t bytes);

  CommunicatorState& state_;
  Messages& messages_;
  const std::vector<int> ranks_;
  const int count_;
  int me_ = 0;
  CallSignature call_;
};

}  // namespace flow::collective
