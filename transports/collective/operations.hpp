// The collectives over any placement of ranks: within a node, between nodes, or both.
//
// Where several ranks share each of several nodes, data is reduced within each node first, then
// among the first ranks of the nodes, and the result is distributed within the nodes.
#pragma once
#include <memory>

#include "transports/collective/message_algorithms.hpp"
#include "transports/collective/shm_algorithms.hpp"
#include "transports/collective/topology.hpp"

namespace flow::collective {

/// Called by the thread that executes calls. False if the communicator has failed.
class Operations {
 public:
  Operations(CommunicatorState& state, Messages& messages, const Topology& topology);
  bool run(const CollectiveCall& call, const CallSignature& signature);

 private:
  bool run_in_shared_memory(const CollectiveCall& call);
  bool run_by_messages(const CollectiveCall& call);
  bool all_reduce(const CollectiveCall& call);
  bool all_reduce_in_place(const Reducer& how, void* data, size_t count);
  bool reduce_scatter(const CollectiveCall& call);
  bool broadcast(const CollectiveCall& call);
  bool barrier();
  Reducer reducer_of(const CollectiveCall& call) const;
  bool is_leader() const { return state_.me() == 0; }
  bool is_one_rank_per_node() const { return topology_.is_one_rank_per_node(); }
  ShmCollectives& shm();

  CommunicatorState& state_;
  const Topology topology_;
  ShmCollectives shm_;
  MessageCollectives all_;
  std::unique_ptr<MessageCollectives> leaders_;  // among the first ranks of the nodes
  CallSignature call_;
};

}  // namespace flow::collective
