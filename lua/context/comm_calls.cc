// ctx.comm's methods. Ranks count from 0, as ctx.rank does.
#include <fmt/format.h>

#include "lua/context/comm.hpp"
#include "lua/sandbox/sandbox.hpp"

namespace flow::lua {
namespace {

const char kCommKey = 0, kUnderwayKey = 0;

// ---- the communicator

Comm& join_gang(lua_State* L) {
  VmContext& ctx = context(L);
  if (ctx.request == nullptr || ctx.host == nullptr)
    raise(L, "ctx.comm belongs to an attempt that has ended");
  if (ctx.comm != nullptr) return *ctx.comm;
  auto joined = ctx.host->communicator();
  uint32_t rank = ctx.request->rank, ranks = ctx.request->ranks;
  if (!joined.ok()) {
    if (ctx.host->stopping()) unwind(L, Sandbox::Unwind::stopped);
    raise(L, fmt::format("ctx.comm: rank {} of {} cannot connect to the other ranks: {}", rank,
                         ranks, joined.error().message));
  }
  if (*joined == nullptr && ranks > 1)
    raise(L, fmt::format("ctx.comm: the {} ranks of this task have no communicator", ranks));
  if (*joined == nullptr) *joined = make_lone_communicator();
  ctx.comm = std::make_shared<Comm>(std::move(*joined));
  return *ctx.comm;
}

Comm& comm_of(lua_State* L, const char* method) {
  if (lua_touserdata(L, 1) == nullptr || test_object(L, 1, &kCommKey) == nullptr)
    raise(L, fmt::format("`ctx.comm.{}` is a method: write `ctx.comm:{}(…)`", method, method));
  return join_gang(L);
}

// ---- arguments

// Whether the options at `index`, the last argument, set async.
bool check_async(lua_State* L, int index, const char* method) {
  if (lua_gettop(L) > index)
    raise(L, fmt::format("ctx.comm:{} takes at most {} arguments, not {}", method,
                         lua_gettop(L) - 1, index - 1));
  if (lua_isnoneornil(L, index)) return false;
  if (!lua_istable(L, index))
    raise(L, fmt::format("ctx.comm:{}: the options are a table, {{ async = true }}, not {}", method,
                         describe(L, index)));
  for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
    bool known = lua_type(L, -2) == LUA_TSTRING && std::string_view(lua_tostring(L, -2)) == "async";
    if (known) continue;
    std::string name = luaL_tolstring(L, -2, nullptr);
    raise(L, fmt::format("ctx.comm:{} has no option `{}`: the only option is async", method, name));
  }
  lua_getfield(L, index, "async");
  if (!lua_isnil(L, -1) && !lua_isboolean(L, -1)) {
    raise(L,
          fmt::format("ctx.comm:{}: async is true or false, not {}", method, luaL_typename(L, -1)));
  }
  bool async = lua_toboolean(L, -1) != 0;
  lua_pop(L, 1);
  return async;
}

ReduceOp check_op(lua_State* L, int index, const char* method) {
  ReduceOp op = ReduceOp::sum;
  if (lua_isnoneornil(L, index)) return op;
  std::string name = lua_type(L, index) == LUA_TSTRING ? lua_tostring(L, index) : "";
  if (!parse_reduce_op(name, op))
    raise(L, fmt::format("ctx.comm:{} combines by \"sum\", \"mean\", \"max\" or \"min\", not {}",
                         method, name.empty() ? describe(L, index) : "\"" + name + "\""));
  return op;
}

// Makes (x, { async = true }) into (x, nil, { async = true }).
void insert_missing_argument(lua_State* L, int index) {
  if (!lua_istable(L, index)) return;
  lua_pushnil(L);
  lua_insert(L, index);
}

int check_rank(lua_State* L, int index, const Comm& comm, const char* method, int otherwise = -1) {
  if (lua_isnoneornil(L, index) && otherwise >= 0) return otherwise;
  int exact = 0;
  lua_Integer rank = lua_tointegerx(L, index, &exact);
  bool is_number = lua_type(L, index) == LUA_TNUMBER;
  if (!exact || !is_number || rank < 0 || rank >= comm.ranks())
    raise(L, fmt::format("ctx.comm:{} takes a rank, 0 to {}, not {}", method, comm.ranks() - 1,
                         is_number ? luaL_tolstring(L, index, nullptr) : describe(L, index)));
  return static_cast<int>(rank);
}

// The result of a call in flight is not available before h:wait(), and its input must not change.
void check_waited(lua_State* L, const Comm& comm, const std::vector<tensors::Tensor>& list,
                  const char* method, bool is_changed = false) {
  for (const tensors::Tensor& x : list) {
    const char* writes = comm.writing(x);
    const char* holds = is_changed ? comm.holding(x) : writes;
    if (holds == nullptr) continue;
    raise(L, fmt::format(
                 "ctx.comm:{}: ctx.comm:{} is {} {}: first call h:wait() on the handle that it "
                 "returned for {{ async = true }}",
                 method, holds, writes != nullptr ? "writing to" : "reading", tensors::text_of(x)));
  }
}

// A tensor whose autograd history would be lost in the result is an error.
const tensors::Tensor& check_plain(lua_State* L, int index, const Comm& comm, const char* method) {
  const tensors::Tensor& x =
      check_object(L, index, fmt::format("what ctx.comm:{} takes", method).c_str());
  if (x.is_tracked() && tensors::runtime().records)
    raise(L, fmt::format("ctx.comm:{}: no gradient goes back through it to {}: give it x:detach(), "
                         "or call it inside flow.no_grad(function() … end)",
                         method, tensors::text_of(x)));
  check_waited(L, comm, {x}, method);
  return x;
}

// The size of dimension 1 of `x`, which is split equally among the ranks.
int64_t check_pieces(lua_State* L, const tensors::Tensor& x, const Comm& comm, const char* method) {
  bool fits = x.rank() > 0 && x.size(0) % comm.ranks() == 0;
  if (!fits)
    raise(L, fmt::format("ctx.comm:{} splits the first dimension among {} ranks, and {} does not "
                         "divide by them",
                         method, comm.ranks(), tensors::text_of(x)));
  return x.size(0) / comm.ranks();
}

// ---- results

int async_handle_wait(lua_State* L) {
  auto* object = static_cast<std::shared_ptr<PendingExchange>*>(test_object(L, 1, &kUnderwayKey));
  if (object == nullptr) raise(L, "a handle of ctx.comm is waited for as h:wait()");
  VmContext& ctx = context(L);
  std::shared_ptr<PendingExchange> underway = *object;
  if (ctx.comm == nullptr && !underway->is_over)
    raise(L, "this handle belongs to an attempt that has ended");
  if (ctx.comm != nullptr) check_done(L, *ctx.comm, underway->method, ctx.comm->wait(*underway));
  lua_getiuservalue(L, 1, 1);
  return 1;
}

int async_handle_drop(lua_State* L) {
  using AsyncHandle = std::shared_ptr<PendingExchange>;
  if (auto* object = static_cast<AsyncHandle*>(test_object(L, 1, &kUnderwayKey)))
    object->~AsyncHandle();
  return 0;
}

void push_async_handle_metatable(lua_State* L) {
  if (new_metatable(L, &kUnderwayKey, "collective")) {
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, protected_call<async_handle_wait>);
    lua_setfield(L, -2, "wait");
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, async_handle_drop);
    lua_setfield(L, -2, "__gc");
  }
  lua_pop(L, 1);
}

// Replaces the result at the top by a handle to wait for it.
void push_async_handle(lua_State* L, std::shared_ptr<PendingExchange> underway) {
  push_async_handle_metatable(L);
  void* memory = lua_newuserdatauv(L, sizeof(underway), 1);
  new (memory) std::shared_ptr<PendingExchange>(std::move(underway));
  set_metatable(L, &kUnderwayKey);
  lua_pushvalue(L, -2);
  lua_setiuservalue(L, -2, 1);
  lua_remove(L, -2);
}

// The result is at the top.
int run_or_start(lua_State* L, Comm& comm, const char* method, Exchange exchange, bool async) {
  if (async) {
    push_async_handle(L, comm.start(method, std::move(exchange)));
  } else {
    check_done(L, comm, method, comm.run(exchange));
  }
  return 1;
}

// Calls `make` from `x` to a new tensor of `shape`, which it pushes.
Exchange exchange_to_new(lua_State* L, const Comm& comm, const tensors::Tensor& x,
                         const kernels::Shape& shape,
                         const std::function<CollectiveCall(const void*, void*)>& make) {
  tensors::NoRecord off;
  Exchange out;
  tensors::Tensor from = as_communicated(x, comm.takes_device());
  tensors::Tensor to = tensors::Tensor::empty(x.dtype(), shape, from.device());
  tensors::Tensor result = to;
  bool is_far = x.device() != from.device();
  if (is_far) result = tensors::Tensor::empty(x.dtype(), shape, x.device());
  out.calls.push_back(make(from.view().data, to.view().data));
  out.calls.back().is_device = is_on_gpu(from);
  out.calls.back().shape = shape_digest(x);
  out.held = {from, to};
  copy_back(out, result, to);
  push_object(L, result);
  return out;
}

// Adds the keys of a table to the call, so that ranks with different keys, or without a table, do
// not match.
void digest_names(lua_State* L, int index, Exchange& exchange) {
  uint64_t names = names_digest(L, index);
  for (CollectiveCall& call : exchange.calls) call.names = names;
}

// ---- methods

int all_reduce_in(lua_State* L) {  // (x[, op[, options]])
  Comm& comm = comm_of(L, "all_reduce");
  insert_missing_argument(L, 3);
  ReduceOp op = check_op(L, 3, "all_reduce");
  bool async = check_async(L, 4, "all_reduce");
  if (lua_type(L, 2) == LUA_TNUMBER) {
    if (async) raise(L, "ctx.comm:all_reduce of a number is done when it returns: no async");
    reduce_number(L, comm, 2, op);
    return 1;
  }
  std::vector<tensors::Tensor> list = check_tensors(L, 2, "all_reduce");
  reject_overlaps("all_reduce", list);
  check_waited(L, comm, list, "all_reduce", true);
  Exchange exchange = exchange_in_place("all_reduce", list, comm.takes_device(),
                                        [op](void* data, int64_t count, DType dtype) {
                                          return all_reduce(data, data, count, dtype, op);
                                        });
  digest_names(L, 2, exchange);
  lua_settop(L, 2);
  return run_or_start(L, comm, "all_reduce", std::move(exchange), async);
}

int reduce_scatter_in(lua_State* L) {  // (x[, op[, options]])
  Comm& comm = comm_of(L, "reduce_scatter");
  insert_missing_argument(L, 3);
  ReduceOp op = check_op(L, 3, "reduce_scatter");
  bool async = check_async(L, 4, "reduce_scatter");
  const tensors::Tensor& x = check_plain(L, 2, comm, "reduce_scatter");
  kernels::Shape shape = x.shape();
  shape[0] = check_pieces(L, x, comm, "reduce_scatter");
  Exchange exchange = exchange_to_new(L, comm, x, shape, [&](const void* from, void* to) {
    return reduce_scatter(from, to, shape.count(), x.dtype(), op);
  });
  return run_or_start(L, comm, "reduce_scatter", std::move(exchange), async);
}

int all_gather_in(lua_State* L) {  // (x[, options])
  Comm& comm = comm_of(L, "all_gather");
  if (lua_isnoneornil(L, 2))
    raise(L,
          "ctx.comm:all_gather takes a tensor or a plain value, not nil, which cannot be an item "
          "of the "
          "list of all ranks: use false instead");
  bool async = check_async(L, 3, "all_gather");
  if (test_object(L, 2) == nullptr) {
    if (async) raise(L, "ctx.comm:all_gather of a plain value is done when it returns: no async");
    gather_values(L, comm, 2);
    return 1;
  }
  const tensors::Tensor& x = check_plain(L, 2, comm, "all_gather");
  kernels::Shape shape = x.shape();
  if (shape.rank == 0) shape = {1};
  shape[0] *= comm.ranks();
  Exchange exchange = exchange_to_new(L, comm, x, shape, [&](const void* from, void* to) {
    return all_gather(from, to, x.count(), x.dtype());
  });
  return run_or_start(L, comm, "all_gather", std::move(exchange), async);
}

int all_to_all_in(lua_State* L) {  // (x[, options])
  Comm& comm = comm_of(L, "all_to_all");
  bool async = check_async(L, 3, "all_to_all");
  const tensors::Tensor& x = check_plain(L, 2, comm, "all_to_all");
  check_pieces(L, x, comm, "all_to_all");
  Exchange exchange = exchange_to_new(L, comm, x, x.shape(), [&](const void* from, void* to) {
    return all_to_all(from, to, x.count() / comm.ranks(), x.dtype());
  });
  return run_or_start(L, comm, "all_to_all", std::move(exchange), async);
}

int broadcast_in(lua_State* L) {  // (x[, root[, options]])
  Comm& comm = comm_of(L, "broadcast");
  insert_missing_argument(L, 3);
  int root = check_rank(L, 3, comm, "broadcast", 0);
  bool async = check_async(L, 4, "broadcast");
  if (!holds_tensors(L, 2)) {
    if (async) raise(L, "ctx.comm:broadcast of a plain value is done when it returns: no async");
    broadcast_value(L, comm, 2, root);
    return 1;
  }
  std::vector<tensors::Tensor> list = check_tensors(L, 2, "broadcast");
  check_waited(L, comm, list, "broadcast", true);
  Exchange exchange = exchange_in_place("broadcast", list, comm.takes_device(),
                                        [root](void* data, int64_t count, DType dtype) {
                                          return broadcast(data, count, dtype, root);
                                        });
  digest_names(L, 2, exchange);
  lua_settop(L, 2);
  return run_or_start(L, comm, "broadcast", std::move(exchange), async);
}

int barrier_in(lua_State* L) {
  Comm& comm = comm_of(L, "barrier");
  if (lua_gettop(L) > 1) raise(L, "ctx.comm:barrier takes no arguments");
  check_done(L, comm, "barrier", comm.run(barrier()));
  return 0;
}

int send_in(lua_State* L) {  // (x, rank[, options])
  Comm& comm = comm_of(L, "send");
  int rank = check_rank(L, 3, comm, "send");
  bool async = check_async(L, 4, "send");
  const tensors::Tensor* x = test_object(L, 2);
  if (x == nullptr) {
    if (async) raise(L, "ctx.comm:send of a plain value is done when it returns: no async");
    send_value(L, comm, 2, rank);
    return 0;
  }
  check_waited(L, comm, {*x}, "send");
  tensors::Tensor copy = as_communicated(*x, false);
  Exchange exchange;
  exchange.calls.push_back(send(copy.view().data, copy.count(), copy.dtype(), rank));
  exchange.calls.back().shape = shape_digest(*x);
  exchange.held.push_back(copy);
  lua_settop(L, 2);
  run_or_start(L, comm, "send", std::move(exchange), async);
  return async ? 1 : 0;
}

// Replaces { shape = { 2, 3 }, dtype = "f32" } at 2 by a tensor.
void make_received(lua_State* L) {
  kernels::Shape shape;
  DType dtype = DType::f32;
  if (lua_getfield(L, 2, "shape") != LUA_TTABLE)
    raise(L,
          "ctx.comm:recv takes a tensor, or { shape = { 2, 3 }, dtype = \"f32\" }, or nil for a "
          "plain value");
  shape = check_shape(L, lua_gettop(L), "ctx.comm:recv");
  if (lua_getfield(L, 2, "dtype") != LUA_TNIL) dtype = check_dtype(L, lua_gettop(L));
  push_object(L, tensors::Tensor::empty(dtype, shape));
  lua_replace(L, 2);
}

int recv_in(lua_State* L) {  // (x, rank[, options])
  Comm& comm = comm_of(L, "recv");
  int rank = check_rank(L, 3, comm, "recv");
  bool async = check_async(L, 4, "recv");
  if (lua_isnil(L, 2)) {
    if (async) raise(L, "ctx.comm:recv of a plain value is done when it returns: no async");
    receive_value(L, comm, rank);
    return 1;
  }
  if (lua_istable(L, 2)) make_received(L);
  check_object(L, 2, "what ctx.comm:recv takes");
  std::vector<tensors::Tensor> list = check_tensors(L, 2, "recv");
  check_waited(L, comm, list, "recv", true);
  Exchange exchange = exchange_in_place(
      "recv", list, false,
      [rank](void* data, int64_t count, DType dtype) { return recv(data, count, dtype, rank); });
  lua_settop(L, 2);
  return run_or_start(L, comm, "recv", std::move(exchange), async);
}

// ---- the object

constexpr luaL_Reg kMethods[] = {{"all_reduce", protected_call<all_reduce_in>},
                                 {"reduce_scatter", protected_call<reduce_scatter_in>},
                                 {"all_gather", protected_call<all_gather_in>},
                                 {"broadcast", protected_call<broadcast_in>},
                                 {"all_to_all", protected_call<all_to_all_in>},
                                 {"barrier", protected_call<barrier_in>},
                                 {"send", protected_call<send_in>},
                                 {"recv", protected_call<recv_in>},
                                 {nullptr, nullptr}};

int comm_index(lua_State* L) {  // upvalue 1: the methods
  lua_settop(L, 2);
  lua_pushvalue(L, 2);
  if (lua_rawget(L, lua_upvalueindex(1)) == LUA_TFUNCTION) return 1;
  const AttemptRequest* request = context(L).request;
  if (request == nullptr) raise(L, "ctx.comm belongs to an attempt that has ended");
  std::string name = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : kind_text(L, 2);
  if (name != "rank" && name != "ranks") {
    std::vector<std::string> names = {"rank", "ranks"};
    for (const luaL_Reg* each = kMethods; each->name != nullptr; each++)
      names.emplace_back(each->name);
    raise(L, fmt::format("ctx.comm has no `{}`{}; it has {}", name, did_you_mean(name, names),
                         join(names)));
  }
  lua_pushinteger(L, name == "rank" ? request->rank : request->ranks);
  return 1;
}

int comm_newindex(lua_State* L) { raise(L, "ctx.comm can't be written to: use a local instead"); }

int comm_text(lua_State* L) {
  const AttemptRequest* request = context(L).request;
  std::string text = request == nullptr
                         ? "ctx.comm of an attempt"
                         : fmt::format("ctx.comm of rank {} of {}", request->rank, request->ranks);
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

}  // namespace

void check_done(lua_State* L, const Comm& comm, const char* method, const Status& status) {
  if (status.ok()) return;
  AttemptHost* host = context(L).host;
  if (comm.has_failed() && host != nullptr && host->stopping()) unwind(L, Sandbox::Unwind::stopped);
  std::string_view text = status.error().message;
  std::string name = fmt::format("{}: ", method);
  if (text.starts_with(name)) text.remove_prefix(name.size());
  raise(L, fmt::format("ctx.comm:{}{}", name, text));  // the attempt's error already names the rank
}

void push_comm(lua_State* L) {
  lua_newuserdatauv(L, 0, 0);
  if (new_metatable(L, &kCommKey, "ctx.comm")) {
    luaL_newlib(L, kMethods);
    lua_pushcclosure(L, comm_index, 1);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, comm_newindex);
    lua_setfield(L, -2, "__newindex");
    lua_pushcfunction(L, comm_text);
    lua_setfield(L, -2, "__tostring");
  }
  lua_pop(L, 1);
  set_metatable(L, &kCommKey);
}

}  // namespace flow::lua
