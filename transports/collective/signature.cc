#include "transports/collective/signature.hpp"

#include <fmt/format.h>

namespace flow::collective {
namespace {

constexpr uint8_t kWhats = static_cast<uint8_t>(Collective::leave) + 1;
constexpr uint8_t kOps = static_cast<uint8_t>(ReduceOp::min) + 1;
constexpr uint16_t kSubjects = static_cast<uint16_t>(Subject::value) + 1;
constexpr uint8_t kDtypes = static_cast<uint8_t>(DType::boolean) + 1;

bool is_reduction(Collective what) {
  return what == Collective::all_reduce || what == Collective::reduce_scatter;
}

// An all_reduce of numbers is an all_gather that each rank reduces.
Collective what_was_called(const CollectiveCall& call) {
  return call.subject == Subject::number ? Collective::all_reduce : call.what;
}

}  // namespace

CallSignature signature_of(const CollectiveCall& call, uint64_t number) {
  CallSignature signature;
  signature.number = number;
  Collective what = what_was_called(call);
  signature.what = static_cast<uint8_t>(what);
  if (call.what == Collective::leave) signature.count = call.count;
  if (call.what == Collective::barrier || call.what == Collective::leave) return signature;
  signature.count = call.count;
  signature.shape = call.shape;
  signature.names = call.names;
  signature.dtype = static_cast<uint8_t>(call.dtype);
  signature.subject = static_cast<uint16_t>(call.subject);
  signature.is_device = call.is_device ? 1 : 0;
  if (call.what == Collective::broadcast) signature.peer = static_cast<int16_t>(call.peer);
  if (is_reduction(what)) signature.op = static_cast<uint8_t>(call.op);
  return signature;
}

CallSignature message_signature(const CollectiveCall& call, uint64_t number) {
  CallSignature signature = signature_of(call, number);
  signature.what = static_cast<uint8_t>(Collective::send);
  return signature;
}

std::string text_of(const CallSignature& signature) {
  if (signature.what >= kWhats || signature.op >= kOps || signature.dtype >= kDtypes ||
      signature.subject >= kSubjects)
    return "an unknown collective";
  CollectiveCall call;
  call.what = static_cast<Collective>(signature.what);
  call.op = static_cast<ReduceOp>(signature.op);
  call.dtype = static_cast<DType>(signature.dtype);
  call.subject = static_cast<Subject>(signature.subject);
  call.count = signature.count;
  call.peer = signature.peer;
  if (call.what == Collective::send) return subject_text(call);
  return collective_text(call) + (signature.is_device != 0 ? " on a GPU" : "");
}

Error mismatch(int one_rank, const CallSignature& one, int other_rank, const CallSignature& other) {
  CallSignature alike = other;
  alike.names = one.names;
  std::string_view difference = alike == one ? " under other keys" : "";
  alike.shape = one.shape;
  if (difference.empty() && alike == one) difference = " with another shape";
  if (one.what == static_cast<uint8_t>(Collective::send) && other.what == one.what)
    return user_error(
        fmt::format("message #{0} from rank {1} to rank {2}: rank {1} sends {3}, rank "
                    "{2} receives {4}{5}",
                    one.number, one_rank, other_rank, text_of(one), text_of(other), difference));
  auto is_leave = [](const CallSignature& call) {
    return call.what == static_cast<uint8_t>(Collective::leave);
  };
  return user_error(fmt::format(
      "collective #{}: rank {} called {}, rank {} called {}{}: all ranks must call the same in the "
      "same order{}",
      one.number, one_rank, text_of(one), other_rank, text_of(other), difference,
      is_leave(one) || is_leave(other)
          ? "; a rank whose task ends calls leave, and one in ctx:wait calls wait"
          : ""));
}

RankProgress LastCall::rank_progress() const {
  auto what = static_cast<uint8_t>((bits_ & 0xff) >> 1);
  if (what >= kWhats) return {};
  return {number(), static_cast<Collective>(what), is_inside(), std::nullopt, 0};
}

std::string LastCall::text() const {
  if (bits_ == 0) return "it has called nothing yet";
  auto what = static_cast<uint8_t>((bits_ & 0xff) >> 1);
  bool is_inside = (bits_ & 1) != 0;
  if (what >= kWhats) return "its last call is unreadable";
  return fmt::format("{} {} #{}", is_inside ? "it is in" : "it was last in",
                     collective_name(static_cast<Collective>(what)), bits_ >> 8);
}

}  // namespace flow::collective
