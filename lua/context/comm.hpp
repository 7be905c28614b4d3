// ctx.comm: what the ranks of a gang do together, as a script calls it.
#pragma once
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "flow/collective.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {

/// One call of a script: calls of the communicator, in order, and what is done after them.
struct Exchange {
  std::vector<CollectiveCall> calls;
  std::vector<tensors::Tensor> held;     // whose memory they use
  std::vector<tensors::Tensor> written;  // the script's own, which it has: whole again at the end
  std::vector<std::function<void()>> after;
};

/// An exchange that goes on beside the script.
struct Underway {
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
  /// Tensors on the process's first GPU are taken as they lie there.
  bool takes_device() const { return communicator_->takes_device(); }
  /// Something between the ranks failed: nothing works any more.
  bool has_failed() const { return has_failed_; }

  Status run(const CollectiveCall& call);
  /// To its end. Throws what the tensors throw.
  Status run(Exchange& exchange);
  std::shared_ptr<Underway> start(const char* method, Exchange exchange);
  Status wait(Underway& underway);

  /// The call that writes to some of `x` and was not waited for: "all_reduce"; null where none
  /// does.
  const char* writing(const tensors::Tensor& x) const;
  /// The same of one that uses some of its memory, be it to read.
  const char* holding(const tensors::Tensor& x) const;

  void abort(const std::string& reason) { communicator_->abort(reason); }
  /// Waits for what the script did not wait for.
  Status finish();
  /// Ends what is under way, on all ranks.
  void leave();

 private:
  Status noted(Status status);

  std::shared_ptr<Communicator> communicator_;
  std::list<std::shared_ptr<Underway>> underway_;
  bool has_failed_ = false;
};

/// Of a task without others: every collective gives what it was given.
std::shared_ptr<Communicator> make_lone_communicator();

// ---- comm_tensors.cc
/// The tensors at `index`: one, or the values of a table in the order of pairs.
std::vector<tensors::Tensor> check_tensors(lua_State* L, int index, const char* method);
/// Whether it is a tensor, or a table with nothing but tensors in it.
bool holds_tensors(lua_State* L, int index);
/// Whether a number of one is a number of the other.
bool share_memory(const tensors::Tensor& a, const tensors::Tensor& b);
/// Throws a Failure where numbers of one are those of another.
void reject_overlaps(const char* method, const std::vector<tensors::Tensor>& list);
/// A call for data that is replaced, such as flow::all_reduce's.
using InPlace = std::function<CollectiveCall(void* data, int64_t count, DType dtype)>;
/// `make` of each tensor; those that are small travel together. Where `takes_device`, what lies on
/// GPUs is given as it lies there, else all through the host.
Exchange exchange_in_place(const char* method, const std::vector<tensors::Tensor>& list,
                           bool takes_device, const InPlace& make);
/// CollectiveCall::shape.
uint64_t shape_digest(const tensors::Tensor& x);
/// CollectiveCall::names, of the table at `index`: its keys in the order of pairs. 0: no table.
uint64_t names_digest(lua_State* L, int index);
/// `x` as it lies dense in the host's memory, or where `takes_device` on the first GPU if it lies
/// on any; a copy where it does not.
tensors::Tensor as_communicated(const tensors::Tensor& x, bool takes_device);
bool is_on_gpu(const tensors::Tensor& x);
/// After the exchange `x` is what `copy`, of as_taken(x), is then.
void copy_back(Exchange& exchange, const tensors::Tensor& x, const tensors::Tensor& copy);

// ---- comm_values.cc. Raise Lua errors that name the method.
void broadcast_value(lua_State* L, Comm& comm, int index, int root);  // pushes it
void gather_values(lua_State* L, Comm& comm, int index);              // pushes the list
void reduce_number(lua_State* L, Comm& comm, int index, ReduceOp op);
void send_value(lua_State* L, Comm& comm, int index, int rank);
void receive_value(lua_State* L, Comm& comm, int rank);

// ---- comm_calls.cc
/// Raises what went wrong in ctx.comm:`method`; an attempt that is to stop ends instead.
void check_done(lua_State* L, const Comm& comm, const char* method, const Status& status);

}  // namespace flow::lua
