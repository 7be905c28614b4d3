// The Lua interface of autograd: x:backward(), x:requires_grad_(), flow.no_grad, flow.autocast;
// backward functions in Lua, by flow.checkpoint and flow.custom_gradient; and flow.fuse.
#include <fmt/format.h>

#include <cmath>

#include "kernels/cuda/device.hpp"
#include "kernels/jit/fused_kernel.hpp"
#include "kernels/shared/types.hpp"
#include "kernels/tensor/autograd.hpp"
#include "kernels/tensor/fusion.hpp"
#include "lua/sandbox/sandbox.hpp"
#include "lua/tensor/gradient_hooks.hpp"
#include "lua/tensor/kernel.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

using tensors::Gradients;
using tensors::SavedTensor;
using tensors::Tensor;

int backward(lua_State* L) {  // x:backward([gradient])
  Tensor root = check_object(L, 1, "x in x:backward()");
  Tensor gradient = lua_isnoneornil(L, 2)
                        ? Tensor()
                        : check_object(L, 2, "the gradient of x:backward").detached();
  backward_with_hooks(L, root, gradient);
  return 0;
}

int require_gradient(lua_State* L) {  // x:requires_grad_([boolean])
  Tensor x = check_object(L, 1, "x in x:requires_grad_()");
  x.want_gradient(lua_isnone(L, 2) || lua_toboolean(L, 2));
  lua_settop(L, 1);
  return 1;
}

int detach(lua_State* L) {
  push_object(L, check_object(L, 1, "x in x:detach()").detached());
  return 1;
}

// ---- while a function runs

// Restores the thread's recording and autocast settings on every exit.
class RecordingScope {
 public:
  RecordingScope()
      : before_records_(now().records), before_casts_(now().casts), type_(now().cast_type) {}
  ~RecordingScope() {
    now().records = before_records_;
    now().casts = before_casts_;
    now().cast_type = type_;
  }
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;
  static tensors::Runtime& now() { return tensors::runtime(); }

 private:
  bool before_records_, before_casts_;
  DType type_;
};

int call_rest(lua_State* L, int function, const char* name) {
  if (!is_callable(L, function))
    raise(L, fmt::format("flow.{} takes a function, not {}", name, describe(L, function)));
  lua_call(L, lua_gettop(L) - function, LUA_MULTRET);
  return lua_gettop(L) - function + 1;
}

template <bool records>
int call_with_records(lua_State* L) {  // flow.no_grad(f, …) -> what f returns
  RecordingScope put_back;
  RecordingScope::now().records = records;
  return call_rest(L, 1, records ? "enable_grad" : "no_grad");
}

int autocast(lua_State* L) {  // flow.autocast(type, f, …) -> what f returns
  DType dtype = check_dtype(L, 1);
  if (dtype != DType::bf16 && dtype != DType::f16 && dtype != DType::f32)
    raise(L,
          fmt::format("flow.autocast takes \"bf16\" or \"f16\" (or \"f32\", which turns it off), "
                      "not \"{}\"",
                      dtype_name(dtype)));
  RecordingScope put_back;
  RecordingScope::now().casts = dtype != DType::f32;
  RecordingScope::now().cast_type = dtype;
  return call_rest(L, 2, "autocast");
}

int is_grad_enabled(lua_State* L) {
  lua_pushboolean(L, tensors::runtime().records);
  return 1;
}

// ---- a backward in Lua

lua_State* main_thread(lua_State* L) {
  lua_rawgeti(L, LUA_REGISTRYINDEX, LUA_RIDX_MAINTHREAD);
  lua_State* main = lua_tothread(L, -1);
  lua_pop(L, 1);
  return main;
}

// A Lua value that C++ holds.
class RegistryReference {
 public:
  RegistryReference(lua_State* L, int index) : L_(main_thread(L)) {
    lua_pushvalue(L, index);
    reference_ = luaL_ref(L, LUA_REGISTRYINDEX);
  }
  RegistryReference(RegistryReference&& other) noexcept
      : L_(other.L_), reference_(std::exchange(other.reference_, LUA_NOREF)) {}
  RegistryReference& operator=(RegistryReference&&) = delete;
  ~RegistryReference() { luaL_unref(L_, LUA_REGISTRYINDEX, reference_); }
  void push(lua_State* L) const { lua_rawgeti(L, LUA_REGISTRYINDEX, reference_); }

 private:
  lua_State* L_;
  int reference_;
};

thread_local lua_State* backward_state = nullptr;  // of the x:backward() that runs

int backward_in(lua_State* L) {
  struct BackwardScope {
    lua_State* before = backward_state;
    ~BackwardScope() { backward_state = before; }
  } put_back;
  backward_state = L;
  return backward(L);
}

// The tensors among the values from `first` to the top.
std::vector<Tensor> tensors_from(lua_State* L, int first) {
  std::vector<Tensor> found;
  for (int index = first; index <= lua_gettop(L); index++)
    if (const Tensor* x = test_object(L, index)) found.push_back(*x);
  return found;
}

// The one tensor that a function of flow.`name` returned at `first`. If it returned a number,
// because nothing was recorded, the number becomes a tensor of the operands' type.
Tensor one_result(lua_State* L, int first, const std::vector<Tensor>& operands, const char* name) {
  int count = lua_gettop(L) - first + 1;
  if (count != 1)
    raise(L, fmt::format("the function of flow.{} returns one tensor, not {} values", name, count));
  if (lua_type(L, first) != LUA_TNUMBER)
    return check_object(L, first, fmt::format("what the function of flow.{} returns", name).c_str())
        .detached();
  DType dtype = DType::f32;
  for (const Tensor& each : operands)
    if (each.dtype() == DType::f64) dtype = DType::f64;
  return Tensor::full(dtype, {}, check_number(L, first, "a result"));
}

// The state of the attempt's random numbers.
class RandomState {
 public:
  explicit RandomState(lua_State* L) {
    Sandbox& from = sandbox(L);
    std::copy(from.random, from.random + 4, random_);
    seeded_ = from.random_seeded;
  }
  void put_back(lua_State* L) const {
    Sandbox& to = sandbox(L);
    std::copy(random_, random_ + 4, to.random);
    to.random_seeded = seeded_;
  }

 private:
  uint64_t random_[4];
  bool seeded_;
};

std::vector<SavedTensor> saved_of(const std::vector<Tensor>& operands) {
  std::vector<SavedTensor> saved;
  for (const Tensor& each : operands) saved.emplace_back(each);
  return saved;
}

// Packs the call on the stack into a table for a backward: [0] the function, then the arguments.
// The table is inserted below them.
int keep_call(lua_State* L) {
  int arguments = lua_gettop(L) - 1;
  lua_createtable(L, arguments, 1);
  for (int i = 0; i <= arguments; i++) {
    lua_pushvalue(L, i + 1);
    lua_rawseti(L, -2, i);
  }
  lua_insert(L, 1);
  return arguments;
}

// Records `out` as the result of the call at 1 on `operands`: its backward repeats the call,
// recorded and with the same random numbers.
Tensor record_recomputation(lua_State* L, Tensor out, int arguments,
                            const std::vector<Tensor>& operands, const RandomState& random) {
  bool casts = tensors::runtime().casts;
  DType cast_type = tensors::runtime().cast_type;
  auto again = [call = RegistryReference(L, 1), arguments, casts, cast_type, random,
                saved = saved_of(operands)](const Tensor& gradient, Gradients& to) {
    for (const SavedTensor& each : saved) each.get();  // checks that they are unchanged
    lua_State* L = backward_state;
    int top = lua_gettop(L);
    luaL_checkstack(L, arguments + 8, "too many arguments");
    call.push(L);
    lua_rawgeti(L, -1, 0);
    std::vector<Tensor> leaves;
    for (int i = 1; i <= arguments; i++) {
      lua_rawgeti(L, top + 1, i);
      const Tensor* x = test_object(L, -1);
      if (x == nullptr) continue;
      Tensor leaf = x->detached();
      if (kernels::is_float(leaf.dtype())) leaf.want_gradient(true);
      leaves.push_back(leaf);
      lua_pop(L, 1);
      push_object(L, leaf);
    }
    RecordingScope put_back;
    RecordingScope::now().records = true;
    RecordingScope::now().casts = casts;
    RecordingScope::now().cast_type = cast_type;
    RandomState now(L);
    random.put_back(L);
    lua_call(L, arguments, 1);
    now.put_back(L);
    const Tensor* result = test_object(L, -1);  // null if nothing in it wants a gradient
    if (result != nullptr && result->is_tracked())
      tensors::backward(Tensor(*result), tensors::cast(gradient, result->dtype()));
    for (size_t i = 0; i < leaves.size(); i++)
      if (to.wants(i) && leaves[i].gradient()) to.set(i, leaves[i].gradient());
    lua_settop(L, top);
  };
  Tensor made = tensors::record("checkpoint", std::move(out), operands, std::move(again));
  made.node()->set_reaches_any();
  return made;
}

// flow.checkpoint(f, …): returns the one tensor that f returns, without the intermediate values of
// its operations: its backward calls f again.
int checkpoint(lua_State* L) {
  if (!is_callable(L, 1))
    raise(L, fmt::format("flow.checkpoint takes a function, not {}", describe(L, 1)));
  int arguments = keep_call(L);
  std::vector<Tensor> operands = tensors_from(L, 3);
  RandomState random(L);
  Tensor out;
  {
    RecordingScope put_back;
    RecordingScope::now().records = false;
    lua_call(L, arguments, LUA_MULTRET);
    out = one_result(L, 2, operands, "checkpoint");
  }
  // Parameters that f reaches as upvalues want gradients without being operands, so the result is
  // recorded whenever this thread records.
  if (tensors::runtime().records && kernels::is_float(out.dtype()))
    out = record_recomputation(L, out, arguments, operands, random);
  push_object(L, out);
  return 1;
}

// Pushes symbols for the arguments from 3 on.
void push_symbols(lua_State* L, tensors::Tracer& tracer, int arguments) {
  lua_pushvalue(L, 2);
  for (int i = 0; i < arguments; i++) {
    const Tensor* x = test_object(L, 3 + i);
    Tensor symbol = x == nullptr ? Tensor() : tracer.symbol_of(*x);
    if (symbol) {
      push_object(L, symbol);
    } else {
      lua_pushvalue(L, 3 + i);
    }
  }
}

// Records `out` as the tape's result from its operands: its backward replays the tape, recorded.
Tensor record_replay(Tensor out, tensors::Tape tape, const std::vector<Tensor>& operands) {
  auto back = [tape = std::move(tape), saved = saved_of(operands)](const Tensor& gradient,
                                                                   Gradients& to) {
    std::vector<Tensor> leaves;
    for (size_t i = 0; i < saved.size(); i++) {
      leaves.push_back(saved[i].get().detached());
      if (to.wants(i)) leaves.back().want_gradient(true);
    }
    RecordingScope put_back;
    RecordingScope::now().records = true;
    RecordingScope::now().casts = false;
    tensors::backward(tape.replay(leaves), gradient);
    for (size_t i = 0; i < saved.size(); i++)
      if (to.wants(i) && leaves[i].gradient()) to.set(i, leaves[i].gradient());
  };
  return tensors::record("fuse", std::move(out), operands, std::move(back));
}

// A kernel of the chain that flow.fuse has recorded, compiled by NVRTC where that is possible.
tensors::FusedKernel fused_kernel(lua_State* L) {
  return [L](const tensors::Device& device, const kernels::FusedElementwise& fused,
             const kernels::View* inputs, const kernels::View& out) {
    if (context(L).phase != ScriptPhase::task) return false;
    void* stream = tensors::stream_of(device).native;  // also makes its context current
    Result<const jit::Driver*> driver = jit::system_driver();
    if (!driver.ok()) return false;
    auto arch = [&] {
      Result<cuda::DeviceInfo> info = cuda::describe(device.index);
      return info.ok() ? info->major * 10 + info->minor : 0;
    };
    auto cache = [&] {
      wait_durable(L);  // the compiled kernel is stored
      return kernel_cache(L);
    };
    return jit::launch_fused(**driver, {fused, inputs, out, device.index, stream}, arch, cache);
  };
}

// flow.fuse(f, …): the result of f, computed in one pass over its operands. Its backward replays
// the operations one by one with the original operands, including those that f captured.
int fuse(lua_State* L) {
  if (!is_callable(L, 1))
    raise(L, fmt::format("flow.fuse takes a function, not {}", describe(L, 1)));
  int arguments = keep_call(L);
  std::vector<Tensor> operands = tensors_from(L, 3);
  if (operands.empty() || !kernels::is_float(operands.front().dtype()))
    raise(L, fmt::format("the first tensor of flow.fuse is of floats, not {}",
                         operands.empty() ? "missing" : tensors::text_of(operands.front())));
  RandomState random(L);
  std::optional<Tensor> out;
  {
    tensors::Tracer tracer(operands.front().dtype(), operands.front().device());
    push_symbols(L, tracer, arguments);
    lua_call(L, arguments, LUA_MULTRET);
    if (lua_gettop(L) != arguments + 3)
      raise(L, fmt::format("the function of flow.fuse returns one tensor, not {} values",
                           lua_gettop(L) - arguments - 2));
    const Tensor& result = check_object(L, -1, "what the function of flow.fuse returns");
    out = tensors::is_symbol(result) ? tracer.compute(result, fused_kernel(L)) : result;
    if (out && !out->is_tracked() && tensors::is_recording(tracer.operands()))
      out = record_replay(*out, tracer.tape(result), tracer.operands());
  }
  if (!out) {  // one operation after the other
    random.put_back(L);
    lua_settop(L, arguments + 2);
    lua_call(L, arguments, 1);
    return 1;
  }
  push_object(L, *out);
  return 1;
}

// flow.custom_gradient(forward, backward) -> f: f(…) returns forward(…), one tensor, computed
// without recording; backward(gradient, …the same arguments) returns a gradient or nil for each
// tensor among them.
int call_custom(lua_State* L) {
  int arguments = lua_gettop(L);
  std::vector<Tensor> operands = tensors_from(L, 1);
  lua_createtable(L, arguments, 0);
  for (int i = 1; i <= arguments; i++) {
    lua_pushvalue(L, i);
    lua_rawseti(L, -2, i);
  }
  lua_insert(L, 1);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 2);
  Tensor out;
  {
    RecordingScope put_back;
    RecordingScope::now().records = false;
    lua_call(L, arguments, LUA_MULTRET);
    out = one_result(L, 2, operands, "custom_gradient");
  }
  if (!tensors::is_recording(operands)) {
    push_object(L, out);
    return 1;
  }
  size_t count = operands.size();
  auto back = [given = RegistryReference(L, 1),
               function = RegistryReference(L, lua_upvalueindex(2)), arguments, count,
               saved = saved_of(operands)](const Tensor& gradient, Gradients& to) {
    for (const SavedTensor& each : saved) each.get();
    lua_State* L = backward_state;
    int top = lua_gettop(L);
    luaL_checkstack(L, arguments + static_cast<int>(count) + 8, "too many arguments");
    given.push(L);
    function.push(L);
    push_object(L, gradient);
    for (int i = 1; i <= arguments; i++) lua_rawgeti(L, top + 1, i);
    lua_call(L, arguments + 1, LUA_MULTRET);
    auto returned = static_cast<size_t>(lua_gettop(L) - top - 1);
    for (size_t i = returned; i < count; i++)
      if (to.wants(i))
        raise(L, fmt::format("a backward returns a gradient for each of the {} tensors, or nil, "
                             "not {} values",
                             count, returned));
    lua_settop(L, top + 1 + static_cast<int>(count));
    for (size_t i = 0; i < count; i++) {
      int index = top + 2 + static_cast<int>(i);
      if (lua_isnil(L, index)) continue;
      to.set(i, check_object(L, index, "a gradient that a backward returns").detached());
    }
    lua_settop(L, top);
  };
  Tensor made = tensors::record("custom_gradient", out, operands, std::move(back));
  made.node()->set_reaches_any();
  push_object(L, made);
  return 1;
}

int custom_gradient(lua_State* L) {
  if (!is_callable(L, 1) || !is_callable(L, 2))
    raise(L, "flow.custom_gradient takes two functions: forward(…) and backward(gradient, …)");
  lua_settop(L, 2);
  push_custom_gradient(L);
  return 1;
}

// The gradients of a list of tensors, and the limit of their norm.
std::vector<Tensor> clipped_gradients(lua_State* L, const char* name, double* limit_out) {
  if (!lua_istable(L, 1))
    raise(L, fmt::format("the tensors whose gradients are clipped are a list, not {}",
                         describe(L, 1)));
  double limit = luaL_checknumber(L, 2);
  if (!(limit >= 0))
    raise(L, fmt::format("flow.{}: the limit is a number of 0 or more, not {}", name,
                         std::isnan(limit) ? "NaN" : fmt::format("{}", limit)));
  *limit_out = limit;
  std::vector<Tensor> gradients;
  for (lua_Integer i = 1; i <= static_cast<lua_Integer>(lua_rawlen(L, 1)); i++) {
    lua_rawgeti(L, 1, i);
    Tensor gradient = check_object(L, -1, "what is clipped").gradient();
    if (gradient) gradients.push_back(gradient);
    lua_pop(L, 1);
  }
  return gradients;
}

// flow.clip_grad_norm(tensors, limit): scales their gradients together; returns the norm before: on
// a GPU a tensor, because a number would have to wait for it
int clip_norm(lua_State* L) {
  double limit = 0;
  std::vector<Tensor> gradients = clipped_gradients(L, "clip_grad_norm", &limit);
  if (Tensor norm = tensors::clip_norm_on_gpu(gradients, limit); norm)
    push_object(L, norm);
  else
    lua_pushnumber(L, tensors::clip_norm(gradients, limit));
  return 1;
}

// flow.clip_grad_factor(tensors, limit): the factor by which clip_grad_norm would scale, and the
// norm: tensors
int clip_factor(lua_State* L) {
  double limit = 0;
  std::vector<Tensor> gradients = clipped_gradients(L, "clip_grad_factor", &limit);
  if (gradients.empty()) raise(L, "flow.clip_grad_factor: none of the tensors has a gradient");
  tensors::NoRecord off;
  for (Tensor& each : gradients) {
    tensors::check_together("clip_grad_factor", {gradients.front(), each});
    each = tensors::contiguous(each);
  }
  Tensor both = tensors::norm_and_factor(gradients, limit);
  push_object(L, tensors::select(both, 0, 1));
  push_object(L, tensors::select(both, 0, 0));
  return 2;
}

}  // namespace

const luaL_Reg kTensorGradients[] = {{"backward", protected_call<backward_in>},
                                     {"requires_grad_", protected_call<require_gradient>},
                                     {"detach", protected_call<detach>},
                                     {nullptr, nullptr}};

bool is_callable(lua_State* L, int index) {
  if (lua_isfunction(L, index)) return true;
  bool callable = luaL_getmetafield(L, index, "__call") != LUA_TNIL;
  if (callable) lua_pop(L, 1);
  return callable;
}

void push_custom_gradient(lua_State* L) { lua_pushcclosure(L, protected_call<call_custom>, 2); }

void open_tensor_gradients(lua_State* L, int flow_table) {
  luaL_Reg functions[] = {{"no_grad", protected_call<call_with_records<false>>},
                          {"enable_grad", protected_call<call_with_records<true>>},
                          {"is_grad_enabled", is_grad_enabled},
                          {"autocast", protected_call<autocast>},
                          {"checkpoint", protected_call<checkpoint>},
                          {"fuse", protected_call<fuse>},
                          {"custom_gradient", protected_call<custom_gradient>},
                          {"clip_grad_norm", protected_call<clip_norm>},
                          {"clip_grad_factor", protected_call<clip_factor>},
                          {"gradient_hook", protected_call<push_gradient_hook>},
                          {nullptr, nullptr}};
  lua_pushvalue(L, flow_table);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}

}  // namespace flow::lua
