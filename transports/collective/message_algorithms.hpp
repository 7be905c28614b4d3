// Collectives by messages between ranks, wherever these are: trees and doubling where there is
// little to move, rings where there is much.
#pragma once
#include <cstddef>
#include <vector>

#include "transports/collective/messages.hpp"
#include "transports/collective/reduce.hpp"

namespace flow::collective {

/// By whoever runs a call. All return false where the communicator has failed. Numbers of f16 and
/// bf16 come here as f32.
class MessageCollectives {
 public:
  /// Among `ranks`, in that order, of which this is one.
  MessageCollectives(CommunicatorState& state, Messages& messages, std::vector<int> ranks);

  void begin(const Signature& call) { call_ = call; }
  /// In place.
  bool all_reduce(const Reducer& how, void* data, size_t count);
  /// `data`: `count` elements for each; its own piece is combined in place, the others are lost.
  bool reduce_scatter(const Reducer& how, void* data, size_t count);
  /// `data`: pieces of `bytes`, of which its own is there.
  bool all_gather(void* data, size_t bytes);
  bool broadcast(void* data, size_t bytes, int root);
  bool all_to_all(const void* from, void* to, size_t bytes);
  bool barrier();

 private:
  /// At step s a rank sends slice me - shift - s to the next and receives the one before that from
  /// the one before; in the first `reducing_steps` steps it reduces what comes with its own.
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
  Signature call_;
};

}  // namespace flow::collective
