// The interface for collectives: operations that all ranks of a gang call together. Implementations
// are in transports/.
//
// All ranks call the same collectives in the same order, with the same operation, type and count.
// If they do not, every rank gets an error; none waits forever. Sends and receives are outside that
// order; those between two ranks match in call order. Any failure ends the communicator on all
// ranks: pending and later calls fail with one cause, which names the rank and the collective. Its
// kind is `user` for mismatched calls, `task` for a timeout, else `environment`.
//
// The result of all_reduce is bitwise equal on every rank, and in every run with the same ranks on
// the same machines: the reduction order depends on nothing else. f16 and bf16 are
// combined in f32 and rounded once. Integer sums wrap; max and min propagate NaN.
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

/// How elements are combined. Bools support only max (logical or) and min (logical and).
enum class ReduceOp : uint8_t { sum, mean, max, min };
const char* reduce_op_name(ReduceOp op);
bool parse_reduce_op(std::string_view name, ReduceOp& out);

/// What the caller passed. Numbers and values travel as bytes, but a call with a tensor and a call
/// with a number do not match.
enum class Subject : uint8_t { tensor, number, value };

/// One call; the functions below construct it. `from` and `to` may be the same memory if they have
/// the same size; otherwise they must not overlap.
struct CollectiveCall {
  Collective what = Collective::barrier;
  ReduceOp op = ReduceOp::sum;  // for numbers too, which the caller combines itself
  Subject subject = Subject::tensor;
  DType dtype = DType::f32;
  bool is_device = false;  // the memory is a GPU's
  bool moves = true;       // false: no data is exchanged, the ranks only compare their calls
  int peer = 0;            // broadcast: the root; send and recv: the other rank
  int64_t count = 0;       // elements, of the shorter of `from` and `to`
  // Digests of the shape and of the names that the caller uses. Ranks only compare them.
  uint64_t shape = 0, names = 0;
  const void* from = nullptr;
  void* to = nullptr;
};

/// to[i] = from[i] of all ranks, combined.
CollectiveCall all_reduce(const void* from, void* to, int64_t count, DType dtype, ReduceOp op);
/// from: one block of `count` elements per rank, in rank order. to: this rank's block, combined.
CollectiveCall reduce_scatter(const void* from, void* to, int64_t count, DType dtype, ReduceOp op);
/// to: the `count` elements of every rank, in rank order.
CollectiveCall all_gather(const void* from, void* to, int64_t count, DType dtype);
/// data: afterwards equal to that of rank `root`.
CollectiveCall broadcast(void* data, int64_t count, DType dtype, int root);
/// from: one block of `count` elements for each rank. to: one block from each rank, in rank order.
CollectiveCall all_to_all(const void* from, void* to, int64_t count, DType dtype);
CollectiveCall barrier();
CollectiveCall send(const void* from, int64_t count, DType dtype, int to_rank);
CollectiveCall recv(void* to, int64_t count, DType dtype, int from_rank);
/// The last call. Blocks without a timeout until all ranks have called it. `waits`: the rank ends
/// to wait for a signal; it must be equal on all ranks.
CollectiveCall leave(bool waits = false);

/// Error (user) if the call is invalid on `rank` of `ranks`.
Status check(const CollectiveCall& call, int rank, int ranks);
/// "1000 f32", "a number".
std::string subject_text(const CollectiveCall& call);
/// "all_reduce(sum) of 1000 f32", "send of 5 i64 to rank 2".
std::string collective_text(const CollectiveCall& call);
/// Bytes of `count` elements.
size_t payload_bytes(const CollectiveCall& call);

/// The newest collective that a rank called, and whether it is still in that call.
struct RankProgress {
  uint64_t number = 0;  // number of its newest collective, from 1; 0: none yet
  Collective what = Collective::barrier;
  bool is_inside = false;             // the call has not returned
  std::optional<Collective> message;  // the send or recv in which the rank waits
  int peer = 0;                       // the other rank of `message`
};
std::string encode_rank_progress(const RankProgress& rank_progress);
std::optional<RankProgress> decode_rank_progress(std::string_view bytes);

/// "rank 1", "ranks 0, 2 and 5"; of many ranks the first ones and the number of the rest.
std::string ranks_text(const std::vector<int>& ranks);
/// Names the rank that a hung gang waits for: "rank 1 hangs: it has not reached all_reduce #7, in
/// which ranks 0 and 2 wait; its last was all_reduce #6". `ranks` is indexed by rank; an empty
/// entry is a rank that did not report. "" if the progress does not identify one.
std::string hang_text(const std::vector<std::optional<RankProgress>>& ranks);

/// A pending call. Thread-safe. Destroying it does not cancel the call.
class CollectiveWork {
 public:
  virtual ~CollectiveWork() = default;
  virtual bool is_done() const = 0;
  /// Blocks until the call is done. For GPU memory it may return earlier, when the call is queued
  /// on the stream: see the communicator.
  virtual Status wait() = 0;
};

/// Thread-safe, but the caller is responsible for the order of calls. The destructor of an idle
/// communicator notifies the peers that this rank has left.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  /// Executes the call and blocks until it is done.
  virtual Status run(const CollectiveCall& call) = 0;
  /// Executes the call asynchronously. Its memory is in use until it is done.
  virtual std::shared_ptr<CollectiveWork> start(const CollectiveCall& call) = 0;
  /// Starts the calls in this order, with one launch for all if the implementation can.
  virtual std::vector<std::shared_ptr<CollectiveWork>> start_all(
      const std::vector<CollectiveCall>& calls) {
    std::vector<std::shared_ptr<CollectiveWork>> works;
    for (const CollectiveCall& call : calls) works.push_back(start(call));
    return works;
  }
  /// The error that ended the communicator, caused by a peer or by this rank.
  virtual Status state() const { return {}; }
  /// Progress of this rank, if the implementation tracks it. Any thread.
  virtual std::optional<RankProgress> rank_progress() const { return std::nullopt; }
  /// Ends the communicator on all ranks; pending calls soon fail with `reason`. Any thread.
  virtual void abort(const std::string& reason) = 0;
  /// Whether calls may use memory of the process's first GPU.
  virtual bool takes_device() const { return false; }
  /// The transport in use, for messages to users.
  virtual std::string description() const = 0;
};

/// The exchange of addresses: each rank publishes its address and gets the addresses of all ranks.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual const std::string& address() const = 0;
  /// Connects to all ranks. `addresses` is in rank order and includes this rank's. Call it once.
  virtual Result<std::unique_ptr<Communicator>> join(const std::vector<std::string>& addresses) = 0;
};

constexpr int kRanksMax = 4096;
/// Error (user) if `rank` or `ranks` is out of range.
Status check_rank(int rank, int ranks);

}  // namespace flow
