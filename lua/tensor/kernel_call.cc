// A call of a kernel: a launch on a GPU, its fallback on the CPU. The functions that a script
// passes (shape, grid, fallback, …) are called with the arguments of the call.
#include <fmt/format.h>

#include <cmath>

#include "kernels/cuda/device.hpp"
#include "kernels/jit/call.hpp"
#include "kernels/tensor/autograd.hpp"
#include "kernels/tensor/capture.hpp"
#include "lua/sandbox/sandbox.hpp"
#include "lua/tensor/kernel.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

using jit::KernelParameter;
using jit::ParameterRole;
using kernels::Number;
using kernels::Shape;
using tensors::Device;
using tensors::Tensor;

// One call: the kernel at stack index `kernel` (or an upvalue), its arguments from `first` to the
// top at construction.
class KernelCall {
 public:
  KernelCall(lua_State* L, int kernel, int first)
      : L_(L),
        kernel_(kernel),
        first_(first),
        count_(lua_gettop(L) - first + 1),
        program_(*test_kernel(L, kernel)),
        call_(program_.source()) {
    luaL_checkstack(L, count_ + 20, "too many arguments of a kernel");
  }

  const jit::KernelSource& source() const { return program_.source(); }
  const std::string& name() const { return source().name; }
  std::vector<Tensor> operands() const { return call_.operands(); }
  int argument_count() const { return count_; }

  void read_arguments() {
    const auto& parameters = source().signature.parameters;
    int wanted = 0;
    for (const KernelParameter& each : parameters) wanted += each.is_given();
    if (count_ != wanted)
      raise(L_, fmt::format("the kernel `{0}` takes {1} arguments, {0}{2}, not {3}", name(), wanted,
                            source().signature.given_text(), count_));
    int index = first_;
    for (size_t at = 0; at < parameters.size(); at++)
      if (parameters[at].is_given()) read_argument(at, index++);
  }

  /// Pushes the results; returns their number.
  int run() {
    Device device = find_device();
    call_.note_writes();
    int base = lua_gettop(L_);
    if (device.kind == Device::cpu) {
      fall_back();
    } else {
      launch(device);
    }
    if (source().signature.count(ParameterRole::out) == 0) push_changed();
    return lua_gettop(L_) - base;
  }

 private:
  void read_argument(size_t at, int index) {
    const KernelParameter& parameter = source().signature.parameters[at];
    std::string what = fmt::format("`{}` of the kernel `{}`", parameter.name, name());
    if (parameter.is_tensor()) return call_.set_tensor(at, check_object(L_, index, what.c_str()));
    bool is_boolean = lua_isboolean(L_, index);
    if (is_boolean != (parameter.dtype == DType::boolean))
      raise(L_, fmt::format("{} is {}, not {}", what, is_boolean ? "a number" : "a boolean",
                            describe(L_, index)));
    Number number = check_number(L_, index, what.c_str());
    if (int exact = 0; !number.is_integer) {  // 3.0 is an integer too
      lua_Integer whole = lua_tointegerx(L_, index, &exact);
      if (exact != 0) number = Number::of(int64_t{whole});
    }
    call_.set_number(at, number);
  }

  Device find_device() {
    Device device;
    if (call_.find_device(device)) return device;
    Result<int> count = cuda::device_count();
    if (count.ok() && *count > 0) device.kind = Device::cuda;
    return device;
  }

  // Calls the function at the top with the arguments.
  void call_function(int results) {
    for (int i = 0; i < count_; i++) lua_pushvalue(L_, first_ + i);
    lua_call(L_, count_, results);
  }

  // ---- shapes of results

  // Pushes the function for the shape of the `out` at `at`.
  void push_shape_function(size_t at) {
    if (push_kernel_field(L_, kernel_, "shape") != LUA_TTABLE) return;
    lua_getfield(L_, -1, source().signature.parameters[at].name.c_str());
    lua_remove(L_, -2);
  }

  Shape shape_of(size_t at) {
    Shape shape;
    if (call_.shape_of(at, shape)) return shape;
    int base = lua_gettop(L_);
    push_shape_function(at);
    call_function(LUA_MULTRET);
    std::string what = fmt::format("the shape of `{}` of the kernel `{}`",
                                   source().signature.parameters[at].name, name());
    if (lua_gettop(L_) == base || lua_isnil(L_, base + 1))
      raise(L_, what + " is nil: its function returns sizes, or a list of them");
    shape = check_shape(L_, base + 1, what.c_str());
    lua_settop(L_, base);
    return shape;
  }

  // ---- on the CPU

  void fall_back() {
    int outs = source().signature.count(ParameterRole::out);
    if (push_kernel_field(L_, kernel_, "fallback") == LUA_TNIL) needs_gpu();
    int base = lua_gettop(L_) - 1;
    {
      tensors::NoRecord off;
      call_function(LUA_MULTRET);
    }
    int given = lua_gettop(L_) - base;
    if (given > outs)
      raise(L_,
            fmt::format("the fallback of the kernel `{}` returned {} values, and it has {} `out`",
                        name(), given, outs));
    lua_settop(L_, base + outs);
    int index = base;
    const auto& parameters = source().signature.parameters;
    for (size_t at = 0; at < parameters.size(); at++) {
      if (parameters[at].role != ParameterRole::out) continue;
      index++;
      std::string what =
          fmt::format("`{}`, from the fallback of `{}`,", parameters[at].name, name());
      Tensor result = check_object(L_, index, what.c_str()).detached();
      Shape shape = shape_of(at);
      call_.check_result(at, result, &shape);
      // On a GPU the results have memory of their own.
      for (const Tensor& each : operands())
        if (each.storage() == result.storage()) result = tensors::copy_of(result);
      push_object(L_, std::move(result));
      lua_replace(L_, index);
    }
  }

  [[noreturn]] void needs_gpu() {
    std::string moved = operands().empty() ? "" : " and move its tensors there, x:to(\"cuda\")";
    raise(L_, fmt::format("{}, and here {}: write `gpus = 1` in the task's options{}; or give the "
                          "kernel a `fallback`, a function that does the same on the CPU",
                          "the kernel `" + name() + "` needs a GPU",
                          operands().empty() ? "is none" : "its tensors are on the CPU", moved));
  }

  // ---- on a GPU

  // Pushes the results.
  void launch(const Device& device) {
    const auto& parameters = source().signature.parameters;
    for (size_t at = 0; at < parameters.size(); at++)
      if (parameters[at].role == ParameterRole::out)
        call_.set_tensor(at, Tensor::empty(parameters[at].dtype, shape_of(at), device));
    jit::Grid grid = read_grid();
    void* stream = tensors::stream_of(device).native;  // also makes its context current
    const jit::Driver& driver = check_driver();
    jit::LoadedFunction& function = find_function(driver, device);
    call_.run(driver, function, grid, stream);
    for (size_t at = 0; at < parameters.size(); at++)
      if (parameters[at].role == ParameterRole::out) push_object(L_, call_.argument(at).tensor);
  }

  const jit::Driver& check_driver() {
    Result<const jit::Driver*> driver = jit::system_driver();
    if (!driver.ok())
      raise(L_,
            fmt::format("the kernel `{}` can't be started: {}", name(), driver.error().message));
    return **driver;
  }

  jit::LoadedFunction& find_function(const jit::Driver& driver, const Device& device) {
    if (jit::LoadedFunction* known = program_.loaded(device.index)) return *known;
    tensors::check_not_captured("the first call of a kernel: call it once before");
    Result<cuda::DeviceInfo> info = cuda::describe(device.index);
    if (!info.ok()) raise(L_, info.error().message);
    wait_durable(L_);  // the compiled kernel is stored
    Result<jit::LoadedFunction*> function =
        program_.load(driver, device.index, info->major * 10 + info->minor, kernel_cache(L_));
    if (!function.ok()) raise(L_, function.error().message);
    return **function;
  }

  // Sizes that are constant, or returned by a function of the arguments.
  bool read_field(const char* field, int count_max, int64_t* out) {
    int base = lua_gettop(L_);
    int type = push_kernel_field(L_, kernel_, field);
    if (type == LUA_TFUNCTION) call_function(LUA_MULTRET);
    if (type != LUA_TNIL)
      read_sizes(L_, fmt::format("`{}` of the kernel `{}`", field, name()), base + 1, count_max,
                 out);
    lua_settop(L_, base);
    return type != LUA_TNIL;
  }

  jit::Grid read_grid() {
    jit::Grid given;
    int64_t per_thread = 1;
    read_field("block", 3, given.threads);
    if (!read_field("grid", 3, given.blocks)) {
      read_field("per_thread", 1, &per_thread);
      given = call_.grid_over_elements(given.threads[0], per_thread);
    }
    read_field("shared", 1, &given.shared);
    return given;
  }

  void push_changed() {
    int index = first_;
    for (const KernelParameter& each : source().signature.parameters) {
      if (each.role == ParameterRole::inout) lua_pushvalue(L_, index);
      index += each.is_given();
    }
  }

  lua_State* L_;
  int kernel_, first_, count_;
  jit::ScriptKernel& program_;
  jit::KernelLaunch call_;
};

// flow.custom_gradient's forward. Upvalue 1: the kernel.
int call_forward(lua_State* L) {
  KernelCall call(L, lua_upvalueindex(1), 1);
  call.read_arguments();
  return call.run();
}

// Pushes the kernel at 1 as a function whose backward is its `gradient`.
int call_recorded(lua_State* L) {
  int arguments = lua_gettop(L) - 1;
  lua_pushvalue(L, 1);
  lua_pushcclosure(L, protected_call<call_forward>, 1);
  push_kernel_field(L, 1, "gradient");
  push_custom_gradient(L);
  lua_replace(L, 1);
  lua_call(L, arguments, 1);
  return 1;
}

}  // namespace

void read_sizes(lua_State* L, const std::string& what, int first, int count_max, int64_t* out) {
  bool is_list = lua_type(L, first) == LUA_TTABLE;
  int count = is_list ? static_cast<int>(std::min<lua_Unsigned>(lua_rawlen(L, first), 100))
                      : lua_gettop(L) - first + 1;
  if (count < 1 || count > count_max)
    raise(L, fmt::format("{} is {}, not {}", what, count_max == 1 ? "one number" : "1 to 3 numbers",
                         count));
  for (int i = 0; i < count; i++) {
    if (is_list) {
      lua_rawgeti(L, first, i + 1);
    } else {
      lua_pushvalue(L, first + i);
    }
    int exact = 0;
    lua_Integer size = lua_tointegerx(L, -1, &exact);
    if (exact == 0 || lua_type(L, -1) != LUA_TNUMBER)
      raise(L, fmt::format("{} is a whole number, not {}", what, describe(L, -1)));
    out[i] = size;
    lua_pop(L, 1);
  }
}

int call_kernel(lua_State* L) {
  const jit::ScriptKernel* program = test_kernel(L, 1);
  if (program == nullptr) raise(L, "a kernel is called as k(x, …)");
  if (context(L).phase != ScriptPhase::task)
    raise(L, fmt::format("the kernel `{}` is called while the script loads or its graph is built: "
                         "kernels run in tasks; call it in one",
                         program->source().name));
  KernelCall call(L, 1, 2);
  call.read_arguments();
  if (!tensors::is_recording(call.operands())) return call.run();
  if (!kernel_has(L, 1, "gradient"))
    throw tensors::TensorError(
        fmt::format("the kernel `{}` has no `gradient`, and that of an argument is wanted: give it "
                    "one, gradient = function(gradient, …) … end, or call it in flow.no_grad, or "
                    "with x:detach()",
                    program->source().name));
  return call_recorded(L);
}

}  // namespace flow::lua
