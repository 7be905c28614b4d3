// Collectives among the ranks of one node, in the memory that they share.
//
// A rank brings data into its own segment, all meet, each reads what it needs of the others', in
// turns of kTurnBytes. Two turns alternate in memory: whoever brings the next one but one has met
// all others since they read this one. Every collective has a meeting, in which the calls are
// compared.
#pragma once
#include <cstdint>

#include "transports/collective/communicator_state.hpp"
#include "transports/collective/reduce.hpp"

namespace flow::collective {

/// By whoever runs a call. All return false where the communicator has failed.
class ShmCollectives {
 public:
  explicit ShmCollectives(CommunicatorState& state)
      : state_(state), count_(static_cast<int>(state.local_ranks().size())) {}

  /// What the next collective is part of. One call of a user may be several here.
  void begin(const Signature& call);

  bool all_reduce(const Reducer& how, const void* from, void* to, size_t count);
  /// `from`: `count` elements for each rank.
  bool reduce_scatter(const Reducer& how, const void* from, void* to, size_t count);
  /// Pieces of `bytes`; `root` among the members.
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

  void arrive();                 // this rank's next place
  bool wait_for(uint64_t step);  // all have reached it
  bool arrive_and_wait() { return arrive(), wait_for(step_); }
  bool compare_calls();
  char* input_buffer(int local_rank, uint64_t round) const;

  CommunicatorState& state_;
  const int count_;
  uint64_t step_ = 0, round_ = 0, begun_ = 0;
  bool is_compared_ = true;
};

}  // namespace flow::collective
