// ctx.comm: the collectives of a gang's ranks, as a script calls them.
#pragma once
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "flow/collective.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {

/// One call of a script: its collectives, in order, and the functions that run after them.
struct Exchange {
  std::vector<CollectiveCall> calls;
  std::vector<tensors::Tensor> held;     // tensors whose memory they use
  std::vector<tensors::Tensor> written;  // tensors of the script that the call overwrites
  std::vector<std::function<void()>> after;
};

/// An exchange that was started with `async = true`.
struct PendingExchange {
  const char* method;  // "all_reduce"
  Exchange exchange;
  std::vector<std::shared_ptr<CollectiveWork>> works;
  bool is_over = false;
  Status status;
};

/// Of one attempt, on its thread.
class Comm {
 public:
  explicit Comm(std::shared_ptr<Communicator> communicator);
  ~Comm();
  Comm(const Comm&) = delete;

  int rank() const { return communicator_->rank(); }
  int ranks() const { return communicator_->ranks(); }
  /// Whether tensors on the process's first GPU need no copy to the host.
  bool takes_device() const { return communicator_->takes_device(); }
  /// A collective has failed: no later call succeeds.
  bool has_failed() const { return has_failed_; }

  Status run(const CollectiveCall& call);
  /// Runs it to its end. Throws a tensors::TensorError.
  Status run(Exchange& exchange);
  std::shared_ptr<PendingExchange> start(const char* method, Exchange exchange);
  Status wait(PendingExchange& underway);

  /// The method of a call in flight that writes to memory of `x`, such as "all_reduce"; null if
  /// there is none.
  const char* writing(const tensors::Tensor& x) const;
  /// The same for a call that reads or writes the memory.
  const char* holding(const tensors::Tensor& x) const;

  void abort(const std::string& reason) { communicator_->abort(reason); }
  /// Waits for the calls that the script did not wait for.
  Status finish();
  /// Aborts calls in flight, on all ranks.
  void leave();

 private:
  Status record_failure(Status status);

  std::shared_ptr<Communicator> communicator_;
  std::list<std::shared_ptr<PendingExchange>> pending_;
  bool has_failed_ = false;
};

/// For a task with one rank: every collective returns its input.
std::shared_ptr<Communicator> make_lone_communicator();

// ---- comm_tensors.cc
/// The tensors at `index`: one, or the values of a table in the order of pairs.
std::vector<tensors::Tensor> check_tensors(lua_State* L, int index, const char* method);
/// Whether the value is a tensor, or a table that has only tensors.
bool holds_tensors(lua_State* L, int index);
/// Whether the tensors have an element in common.
bool share_memory(const tensors::Tensor& a, const tensors::Tensor& b);
/// Throws a Failure if two tensors have an element in common.
void reject_overlaps(const char* method, const std::vector<tensors::Tensor>& list);
/// Makes a call that works in place, such as flow::all_reduce.
using InPlace = std::function<CollectiveCall(void* data, int64_t count, DType dtype)>;
/// One call of `make` per tensor; small tensors are combined. With `takes_device`, tensors on GPUs
/// are passed in place, otherwise all are copied to the host.
Exchange exchange_in_place(const char* method, const std::vector<tensors::Tensor>& list,
                           bool takes_device, const InPlace& make);
/// Value of CollectiveCall::shape.
uint64_t shape_digest(const tensors::Tensor& x);
/// Value of CollectiveCall::names for the table at `index`: its keys in the order of pairs. 0: not
/// a table.
uint64_t names_digest(lua_State* L, int index);
/// `x` itself if it is dense and in host memory (with `takes_device`, also on the first GPU),
/// otherwise a copy there.
tensors::Tensor as_communicated(const tensors::Tensor& x, bool takes_device);
bool is_on_gpu(const tensors::Tensor& x);
/// After the exchange, copies `copy`, the result of as_communicated(x), back to `x`.
void copy_back(Exchange& exchange, const tensors::Tensor& x, const tensors::Tensor& copy);

// ---- comm_values.cc. Raise Lua errors that name the method.
void broadcast_value(lua_State* L, Comm& comm, int index, int root);  // pushes it
void gather_values(lua_State* L, Comm& comm, int index);              // pushes the list
void reduce_number(lua_State* L, Comm& comm, int index, ReduceOp op);
void send_value(lua_State* L, Comm& comm, int index, int rank);
void receive_value(lua_State* L, Comm& comm, int rank);

// ---- comm_calls.cc
/// Raises the error of ctx.comm:`method`; ends the attempt instead if it is to stop.
void check_done(lua_State* L, const Comm& comm, const char* method, const Status& status);

}  // namespace flow::lua
