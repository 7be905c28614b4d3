// Collectives among the ranks of one node, in the memory that they share.
//
// A rank brings data into its own segment, all meet, each reads what it needs of the others', in
// turns of kTurnBytes. Two turns alternate in memory: whoever brings the next one but one has met
// all others since they read this one. Every collective has a meeting, in which the calls are
// compared.
#pragma once
#include <cstdint>

#include "transports/collective/combine.hpp"
#include "transports/collective/communicator_state.hpp"

namespace flow::collective {

/// By whoever runs a call. All return false where the communicator has failed.
class Local {
 public:
  explicit Local(CommunicatorState& state)
      : state_(state), count_(static_cast<int>(state.local_ranks().size())) {}

  /// What the next collective is part of. One call of a user may be several here.
  void begin(const Signature& call);

  bool all_reduce(const Combining& how, const void* from, void* to, size_t count);
  /// `from`: `count` elements for each rank.
  bool reduce_scatter(const Combining& how, const void* from, void* to, size_t count);
  /// Pieces of `bytes`; `root` among the members.
  bool all_gather(const void* from, void* to, size_t bytes);
  bool broadcast(void* data, size_t bytes, int root);
  bool all_to_all(const void* from, void* to, size_t bytes);
  bool barrier();

 private:
  struct Slice {
    size_t begin = 0, end = 0;
  };

  bool all_reduce_at_once(const Combining& how, const void* from, void* to, size_t count);
  void bring_for_others(const char* from, size_t count, size_t size);
  void combine_own(const Combining& how, const char* from, char* to, size_t count, size_t size,
                   uint64_t turn);
  void take_from_others(char* to, size_t count, size_t size, uint64_t turn);
  Slice slice_of(int local_rank, size_t count) const;

  void reach();                  // this rank's next place
  bool wait_for(uint64_t step);  // all have reached it
  bool meet() { return reach(), wait_for(step_); }
  bool compare_calls();
  char* brought(int local_rank, uint64_t turn) const;

  CommunicatorState& state_;
  const int count_;
  uint64_t step_ = 0, turn_ = 0, begun_ = 0;
  bool is_compared_ = true;
};

}  // namespace flow::collective
