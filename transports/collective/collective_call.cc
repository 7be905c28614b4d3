#include "flow/collective.hpp"

#include <fmt/format.h>

#include <limits>

namespace flow {
namespace {

bool is_integer(DType dtype) {
  return dtype == DType::i64 || dtype == DType::i32 || dtype == DType::u8;
}

bool reduces(Collective what) {
  return what == Collective::all_reduce || what == Collective::reduce_scatter;
}

bool has_peer(Collective what) {
  return what == Collective::broadcast || what == Collective::send || what == Collective::recv;
}

CollectiveCall moving(Collective what, const void* from, void* to, int64_t count, DType dtype,
                      int peer = 0) {
  CollectiveCall call;
  call.what = what;
  call.dtype = dtype;
  call.peer = peer;
  call.count = count;
  call.from = from;
  call.to = to;
  return call;
}

Status check_op(const CollectiveCall& call) {
  const char* name = collective_name(call.what);
  if (call.op == ReduceOp::mean && is_integer(call.dtype))
    return user_error(fmt::format(
        "{}: the mean of {} is not supported for integers: take the sum, or convert to f32 first",
        name, dtype_name(call.dtype)));
  if (call.dtype == DType::boolean && call.op != ReduceOp::max && call.op != ReduceOp::min)
    return user_error(
        fmt::format("{}: bools cannot be reduced with `{}`: `max` is whether any is true, `min` "
                    "whether all are",
                    name, reduce_op_name(call.op)));
  return {};
}

Status check_peer(const CollectiveCall& call, int rank, int ranks) {
  const char* name = collective_name(call.what);
  if (call.peer < 0 || call.peer >= ranks)
    return user_error(fmt::format("{}: {} is not a rank of this gang: its ranks are 0 to {}", name,
                                  call.peer, ranks - 1));
  if (call.what != Collective::broadcast && call.peer == rank)
    return user_error(fmt::format("{}: rank {} is this one; copy instead", name, rank));
  return {};
}

}  // namespace

const char* collective_name(Collective what) {
  constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather",
                                    "broadcast",  "all_to_all",     "barrier",
                                    "send",       "recv",           "leave"};
  return kNames[static_cast<size_t>(what)];
}

const char* reduce_op_name(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "mean", "max", "min"};
  return kNames[static_cast<size_t>(op)];
}

bool parse_reduce_op(std::string_view name, ReduceOp& out) {
  for (ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::max, ReduceOp::min}) {
    if (name != reduce_op_name(op)) continue;
    out = op;
    return true;
  }
  return false;
}

CollectiveCall all_reduce(const void* from, void* to, int64_t count, DType dtype, ReduceOp op) {
  CollectiveCall call = moving(Collective::all_reduce, from, to, count, dtype);
  call.op = op;
  return call;
}

CollectiveCall reduce_scatter(const void* from, void* to, int64_t count, DType dtype, ReduceOp op) {
  CollectiveCall call = moving(Collective::reduce_scatter, from, to, count, dtype);
  call.op = op;
  return call;
}

CollectiveCall all_gather(const void* from, void* to, int64_t count, DType dtype) {
  return moving(Collective::all_gather, from, to, count, dtype);
}

CollectiveCall broadcast(void* data, int64_t count, DType dtype, int root) {
  return moving(Collective::broadcast, data, data, count, dtype, root);
}

CollectiveCall all_to_all(const void* from, void* to, int64_t count, DType dtype) {
  return moving(Collective::all_to_all, from, to, count, dtype);
}

CollectiveCall barrier() { return {}; }

CollectiveCall leave(bool waits) {
  CollectiveCall call;
  call.what = Collective::leave;
  call.count = waits ? 1 : 0;
  return call;
}

CollectiveCall send(const void* from, int64_t count, DType dtype, int to_rank) {
  return moving(Collective::send, from, nullptr, count, dtype, to_rank);
}

CollectiveCall recv(void* to, int64_t count, DType dtype, int from_rank) {
  return moving(Collective::recv, nullptr, to, count, dtype, from_rank);
}

Status check(const CollectiveCall& call, int rank, int ranks) {
  // The limit also holds for a buffer that is `ranks` times as long.
  int64_t most = std::numeric_limits<int64_t>::max() / 8 / kRanksMax;
  if (call.count < 0 || call.count > most)
    return user_error(fmt::format("{}: {} elements", collective_name(call.what), call.count));
  if (reduces(call.what)) FLOW_TRY(check_op(call));
  if (has_peer(call.what)) FLOW_TRY(check_peer(call, rank, ranks));
  return {};
}

std::string subject_text(const CollectiveCall& call) {
  if (call.subject == Subject::number) return "a number";
  if (call.subject == Subject::value) return "a value";
  return fmt::format("{} {}", call.count, dtype_name(call.dtype));
}

std::string collective_text(const CollectiveCall& call) {
  std::string text = collective_name(call.what);
  if (call.what == Collective::barrier) return text;
  if (call.what == Collective::leave) return call.count > 0 ? "wait" : text;
  if (reduces(call.what)) text += fmt::format("({})", reduce_op_name(call.op));
  text += " of " + subject_text(call);
  if (call.what == Collective::send) return text + fmt::format(" to rank {}", call.peer);
  if (has_peer(call.what)) return text + fmt::format(" from rank {}", call.peer);
  return text;
}

size_t payload_bytes(const CollectiveCall& call) {
  return static_cast<size_t>(call.count) * dtype_size(call.dtype);
}

Status check_rank(int rank, int ranks) {
  if (ranks >= 1 && ranks <= kRanksMax && rank >= 0 && rank < ranks) return {};
  return user_error(
      fmt::format("{} is not a rank of a gang of {}: a gang has 1 to {} ranks, numbered from 0",
                  rank, ranks, kRanksMax));
}

}  // namespace flow
