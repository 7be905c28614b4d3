// Collectives among the ranks of one node, in shared memory.
//
// A rank copies data into its own segment, all ranks meet at a barrier, and each reads its part
// from all segments, in rounds of kRoundBytes. Two rounds alternate in memory: a rank that copies
// in the next round but one has passed a barrier after all others read this one. Every collective
// has at least one barrier, at which the calls are compared.
#pragma once
#include <cstdint>

#include "transports/collective/communicator_state.hpp"
#include "transports/collective/reduce.hpp"

namespace flow::collective {

/// Called by the thread that executes calls. All return false if the communicator has failed.
class ShmCollectives {
 public:
  explicit ShmCollectives(CommunicatorState& state)
      : state_(state), count_(static_cast<int>(state.local_ranks().size())) {}

  /// Names the call that the next collective is part of. One call of a user may be several
  /// collectives here.
  void begin(const CallSignature& call);

  bool all_reduce(const Reducer& how, const void* from, void* to, size_t count);
  /// `from`: `count` elements per rank.
  bool reduce_scatter(const Reducer& how, const void* from, void* to, size_t count);
  /// Blocks of `bytes`; `root` is an index among the ranks of this node.
  bool all_gather(const void* from, void* to, size_t bytes);
  bool broadcast(void* data, size_t bytes, int root);
  bool all_to_all(const void* from, void* to, size_t bytes);
  bool barrier();

 private:
  struct Slice {
    size_t begin = 0, end = 0;
  };

  bool all_reduce_at_once(const Reducer& how, const void* from, void* to, size_t count);
  void write_inputs(const char* from, size_t count, size_t size);
  void reduce_own_slice(const Reducer& how, const char* from, char* to, size_t count, size_t size,
                        uint64_t round);
  void read_outputs(char* to, size_t count, size_t size, uint64_t round);
  Slice slice_of(int local_rank, size_t count) const;

  void arrive();                 // at this rank's next barrier
  bool wait_for(uint64_t step);  // until all ranks have reached it
  bool arrive_and_wait() { return arrive(), wait_for(step_); }
  bool compare_calls();
  char* input_buffer(int local_rank, uint64_t round) const;

  CommunicatorState& state_;
  const int count_;
  uint64_t step_ = 0, round_ = 0, begun_ = 0;
  bool is_compared_ = true;
};

}  // namespace flow::collective
