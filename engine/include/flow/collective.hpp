// The port of what the ranks of a gang do together. Implementations lie in transports/.
//
// All ranks call the same collectives in the same order, with the same operation, type and count:
// where they do not, all are told, and none waits for ever. Sends and receives stand beside that
// order; those between two ranks match in the order of their calls. Whatever fails ends the
// communicator on all ranks: what is under way and what is called later fails with the one cause,
// which names the rank and the collective. It is of kind user where ranks called what does not fit,
// task where one was waited for too long, else environment.
//
// What all_reduce gives is the same to the bit on every rank, and in every run with the same ranks
// on the same nodes: the order in which numbers are combined depends on nothing else. f16 and bf16
// are combined in f32 and rounded once. Sums of integers wrap; NaN goes through max and min.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flow/dtype.hpp"
#include "flow/result.hpp"

namespace flow {

enum class Collective : uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all,
  barrier,
  send,
  recv,
  leave,
};
const char* collective_name(Collective what);
constexpr uint8_t kCollectives = 9;

/// Of numbers; max and min of bools too: whether any is true, whether all are.
enum class ReduceOp : uint8_t { sum, mean, max, min };
const char* reduce_op_name(ReduceOp op);
bool parse_reduce_op(std::string_view name, ReduceOp& out);

/// What a caller gave. A number's bytes and a value's are gathered or sent as bytes are, but ranks
/// that gave different things did not make the same call.
enum class Subject : uint8_t { tensor, number, value };

/// One call. The functions below make it. `from` and `to` may be the same memory where they are
/// equally long, and may not overlap otherwise.
struct CollectiveCall {
  Collective what = Collective::barrier;
  ReduceOp op = ReduceOp::sum;  // of a number too, which the caller combines by it
  Subject subject = Subject::tensor;
  DType dtype = DType::f32;
  bool is_device = false;  // a GPU's memory
  bool moves = true;       // false: ranks only see that all call the same
  int peer = 0;            // broadcast: whose data; send and recv: the other rank
  int64_t count = 0;       // elements, of the shorter of the two
  // Compared between the ranks, and no more: digests of what they lie as, and of what the caller
  // calls them.
  uint64_t shape = 0, names = 0;
  const void* from = nullptr;
  void* to = nullptr;
};

/// to[i] = all ranks' from[i], combined.
CollectiveCall all_reduce(const void* from, void* to, int64_t count, DType dtype, ReduceOp op);
/// from: a piece of `count` for each rank, in their order. to: this rank's piece, combined.
CollectiveCall reduce_scatter(const void* from, void* to, int64_t count, DType dtype, ReduceOp op);
/// to: all ranks' `count` elements, in their order.
CollectiveCall all_gather(const void* from, void* to, int64_t count, DType dtype);
/// data: everywhere what it is on rank `root`.
CollectiveCall broadcast(void* data, int64_t count, DType dtype, int root);
/// from: a piece of `count` for each rank. to: a piece of each rank, in their order.
CollectiveCall all_to_all(const void* from, void* to, int64_t count, DType dtype);
CollectiveCall barrier();
CollectiveCall send(const void* from, int64_t count, DType dtype, int to_rank);
CollectiveCall recv(void* to, int64_t count, DType dtype, int from_rank);
/// The last call: until all ranks have come to it, however long that takes. A rank that ends to
/// wait for a signal does so with the others or not at all.
CollectiveCall leave(bool waits = false);

/// A user's mistake in a call on `rank` of `ranks`.
Status check(const CollectiveCall& call, int rank, int ranks);
/// "1000 f32", "a number".
std::string subject_text(const CollectiveCall& call);
/// "all_reduce(sum) of 1000 f32", "send of 5 i64 to rank 2".
std::string collective_text(const CollectiveCall& call);
/// Bytes of `count` elements.
size_t payload_bytes(const CollectiveCall& call);

/// Where a rank is: what it called last, and whether it waits in it.
struct RankProgress {
  uint64_t number = 0;  // of its newest collective, from 1; 0: it has called none
  Collective what = Collective::barrier;
  bool is_inside = false;
  std::optional<Collective> message;  // the send or recv that it waits in,
  int peer = 0;                       // with this rank
};
std::string encode_rank_progress(const RankProgress& rank_progress);
std::optional<RankProgress> decode_rank_progress(std::string_view bytes);

/// "rank 1", "ranks 0, 2 and 5"; of many the first ones and how many more.
std::string ranks_text(const std::vector<int>& ranks);
/// Whom those of a gang wait for that hangs: "rank 1 hangs: it has not come to all_reduce #7, in
/// which ranks 0 and 2 wait; its last was all_reduce #6". `ranks` by rank; nothing of those who did
/// not say where they are. "" where nothing follows.
std::string hang_text(const std::vector<std::optional<RankProgress>>& ranks);

/// A call under way. Thread-safe. Dropping it is no harm: the call goes on.
class CollectiveWork {
 public:
  virtual ~CollectiveWork() = default;
  virtual bool is_done() const = 0;
  /// Until it is done. Of a GPU's memory it may not wait: see the communicator that runs it.
  virtual Status wait() = 0;
};

/// Thread-safe; but the order of calls is the caller's to keep. Its destructor, when nothing is
/// under way, leaves: peers that go on to wait for this rank are told.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  /// The call, to its end.
  virtual Status run(const CollectiveCall& call) = 0;
  /// Goes on beside the caller. Its memory is used until it is done.
  virtual std::shared_ptr<CollectiveWork> start(const CollectiveCall& call) = 0;
  /// Why it has ended: a peer's doing or this rank's own.
  virtual Status state() const { return {}; }
  /// Of this rank; any thread. Nothing where it is not known.
  virtual std::optional<RankProgress> rank_progress() const { return std::nullopt; }
  /// Ends everything on all ranks, from any thread. Soon what is under way fails with `reason`.
  virtual void abort(const std::string& reason) = 0;
  /// Calls on a GPU's memory run too: on that of the process's first GPU.
  virtual bool takes_device() const { return false; }
  /// Over what it runs, for people.
  virtual std::string description() const = 0;
};

/// How ranks find each other: each gives its address, some bytes, and gets those of all.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual const std::string& address() const = 0;
  /// `addresses` of all ranks, in their order; this one's too. Once.
  virtual Result<std::unique_ptr<Communicator>> join(const std::vector<std::string>& addresses) = 0;
};

constexpr int kRanksMax = 4096;
/// A user's mistake in them.
Status check_rank(int rank, int ranks);

}  // namespace flow
