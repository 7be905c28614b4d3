#include "transports/collective/operations.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

namespace flow::collective {
namespace {

std::vector<int> up_to(int count) {
  std::vector<int> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void copy(const void* from, void* to, size_t bytes) {
  if (bytes > 0 && from != to) std::memcpy(to, from, bytes);
}

}  // namespace

Operations::Operations(CommunicatorState& state, Messages& messages, const Topology& topology)
    : state_(state), topology_(topology), shm_(state), all_(state, messages, up_to(state.ranks())) {
  if (is_leader())
    leaders_ = std::make_unique<MessageCollectives>(state, messages, topology_.leaders());
}

Reducer Operations::reducer_of(const CollectiveCall& call) const {
  return {call.dtype, call.op, call.op == ReduceOp::mean ? state_.ranks() : 1};
}

/// For another collective within the node.
ShmCollectives& Operations::shm() {
  shm_.begin(call_);
  return shm_;
}

bool Operations::run(const CollectiveCall& call, const CallSignature& signature) {
  call_ = signature;
  all_.begin(signature);
  if (leaders_) leaders_->begin(signature);
  if (!call.moves) return topology_.is_one_node() ? shm().barrier() : barrier();
  return topology_.is_one_node() ? run_in_shared_memory(call) : run_by_messages(call);
}

bool Operations::run_in_shared_memory(const CollectiveCall& call) {
  auto count = static_cast<size_t>(call.count);
  size_t bytes = payload_bytes(call);
  ShmCollectives& shm = this->shm();
  switch (call.what) {
    case Collective::all_reduce:
      return shm.all_reduce(reducer_of(call), call.from, call.to, count);
    case Collective::reduce_scatter:
      return shm.reduce_scatter(reducer_of(call), call.from, call.to, count);
    case Collective::all_gather:
      return shm.all_gather(call.from, call.to, bytes);
    case Collective::broadcast:
      return shm.broadcast(call.to, bytes, call.peer);
    case Collective::all_to_all:
      return shm.all_to_all(call.from, call.to, bytes);
    default:
      return shm.barrier();
  }
}

/// Collectives by messages among all ranks first synchronize within the node, where a rank that
/// calls something else is detected.
bool Operations::run_by_messages(const CollectiveCall& call) {
  size_t bytes = payload_bytes(call);
  bool compares_later = call.what == Collective::all_reduce || call.what == Collective::broadcast ||
                        call.what == Collective::barrier || call.what == Collective::leave;
  if (!is_one_rank_per_node() && !compares_later && !shm().barrier()) return false;
  switch (call.what) {
    case Collective::all_reduce:
      return all_reduce(call);
    case Collective::reduce_scatter:
      return reduce_scatter(call);
    case Collective::all_gather:
      copy(call.from, static_cast<char*>(call.to) + static_cast<size_t>(state_.rank()) * bytes,
           bytes);
      return all_.all_gather(call.to, bytes);
    case Collective::broadcast:
      return broadcast(call);
    case Collective::all_to_all:
      return all_.all_to_all(call.from, call.to, bytes);
    default:
      return barrier();
  }
}

bool Operations::all_reduce(const CollectiveCall& call) {
  auto count = static_cast<size_t>(call.count);
  Reducer how = reducer_of(call);
  if (!is_small_float(call.dtype)) {
    copy(call.from, call.to, payload_bytes(call));
    return all_reduce_in_place(how, call.to, count);
  }
  std::vector<float> wide(count);
  widen(call.dtype, call.from, wide.data(), count);
  how.dtype = DType::f32;
  if (!all_reduce_in_place(how, wide.data(), count)) return false;
  narrow(call.dtype, wide.data(), call.to, count);
  return true;
}

bool Operations::all_reduce_in_place(const Reducer& how, void* data, size_t count) {
  if (is_one_rank_per_node()) return all_.all_reduce(how, data, count);
  Reducer within = how;
  within.divisor = 1;
  return shm().all_reduce(within, data, data, count) &&
         (!is_leader() || leaders_->all_reduce(how, data, count)) &&
         shm().broadcast(data, count * dtype_size(how.dtype), 0);
}

bool Operations::reduce_scatter(const CollectiveCall& call) {
  auto count = static_cast<size_t>(call.count), ranks = static_cast<size_t>(state_.ranks());
  auto rank = static_cast<size_t>(state_.rank());
  Reducer how = reducer_of(call);
  if (!is_small_float(call.dtype)) {
    size_t bytes = payload_bytes(call);
    std::vector<char> all(bytes * ranks);
    copy(call.from, all.data(), all.size());
    if (!all_.reduce_scatter(how, all.data(), count)) return false;
    copy(all.data() + rank * bytes, call.to, bytes);
    return true;
  }
  std::vector<float> wide(count * ranks);
  widen(call.dtype, call.from, wide.data(), wide.size());
  how.dtype = DType::f32;
  if (!all_.reduce_scatter(how, wide.data(), count)) return false;
  narrow(call.dtype, wide.data() + rank * count, call.to, count);
  return true;
}

bool Operations::broadcast(const CollectiveCall& call) {
  size_t bytes = payload_bytes(call);
  if (is_one_rank_per_node()) return all_.broadcast(call.to, bytes, call.peer);
  auto rank = static_cast<size_t>(state_.rank()), root = static_cast<size_t>(call.peer);
  int root_node = topology_.node_of[root];
  const auto& root_ranks = topology_.nodes[static_cast<size_t>(root_node)];
  bool is_on_root_node = topology_.node_of[rank] == root_node;
  auto root_index = static_cast<int>(std::find(root_ranks.begin(), root_ranks.end(), call.peer) -
                                     root_ranks.begin());
  if (is_on_root_node && !shm().broadcast(call.to, bytes, root_index)) return false;
  if (is_leader() && !leaders_->broadcast(call.to, bytes, root_node)) return false;
  return is_on_root_node || shm().broadcast(call.to, bytes, 0);
}

bool Operations::barrier() {
  if (is_one_rank_per_node()) return all_.barrier();
  return shm().barrier() && (!is_leader() || leaders_->barrier()) && shm().barrier();
}

}  // namespace flow::collective
