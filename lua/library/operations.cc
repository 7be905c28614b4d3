// flow.operations(path): operations on tensors from a shared library (flow/operation.h).
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <compare>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>

#include "flow/operation.h"
#include "kernels/tensor/autograd.hpp"
#include "kernels/tensor/capture.hpp"
#include "lua/sandbox/sandbox.hpp"
#include "lua/state/arguments.hpp"
#include "lua/tensor/tensor.hpp"

namespace flow::lua {
namespace {

using tensors::Gradients;
using tensors::SavedTensor;
using tensors::Tensor;

static_assert(FLOW_F32 == static_cast<int>(DType::f32) &&
              FLOW_F64 == static_cast<int>(DType::f64) &&
              FLOW_I64 == static_cast<int>(DType::i64) &&
              FLOW_BOOL == static_cast<int>(DType::boolean));
static_assert(FLOW_RANK_MAX == kernels::kRankMax);

constexpr int32_t kOperationsMax = 1000;
constexpr size_t kMessageMax = 1000;

// A library is never unloaded: recorded operations may refer to it.
struct OperationLibrary {
  std::string path;
  const FlowOperation* operations = nullptr;
  int32_t count = 0;

  const FlowOperation* find(std::string_view name) const {
    for (int32_t i = 0; i < count; i++)
      if (name == operations[i].name) return &operations[i];
    return nullptr;
  }
};

FlowTensor plain(const kernels::View& view) {
  FlowTensor out{};
  out.type = static_cast<int32_t>(view.dtype);
  out.rank = view.rank();
  std::copy(view.shape.sizes, view.shape.sizes + kernels::kRankMax, out.sizes);
  std::copy(view.strides, view.strides + kernels::kRankMax, out.strides);
  out.data = view.data;
  return out;
}

// The output shape from `describe`, which is untrusted.
kernels::Shape described_shape(const OperationLibrary& library, const FlowOperation& operation,
                               const FlowTensor& output) {
  bool good = output.type >= FLOW_F32 && output.type <= FLOW_BOOL && output.rank >= 0 &&
              output.rank <= kernels::kRankMax;
  kernels::Shape shape;
  for (int dim = 0; good && dim < output.rank; dim++) {
    good = output.sizes[dim] >= 0;
    shape.push(output.sizes[dim]);
  }
  if (!good)
    throw tensors::TensorError(fmt::format(
        "`{}` of {} describes an output that is not a valid tensor", operation.name, library.path));
  return shape;
}

void check(const OperationLibrary& library, const FlowOperation& operation, const FlowCall& call,
           int code) {
  if (code == 0) return;
  size_t length = ::strnlen(call.message, call.message_size);
  throw tensors::TensorError(fmt::format(
      "`{}` of {}: {}", operation.name, library.path,
      length > 0 ? std::string(call.message, length) : fmt::format("it failed with {}", code)));
}

std::vector<Tensor> run(const OperationLibrary& library, const FlowOperation& operation,
                        const std::vector<Tensor>& inputs, const std::vector<double>& numbers) {
  std::vector<FlowTensor> in, out(FLOW_OUTPUTS_MAX);
  tensors::Device device;
  for (const Tensor& each : inputs) {
    if (!in.empty() && !(each.device() == device))
      throw tensors::TensorError(
          fmt::format("the inputs of `{}` are on different devices, {} and {}", operation.name,
                      tensors::text_of(device), tensors::text_of(each.device())));
    device = each.device();
    in.push_back(plain(each.view()));
  }
  tensors::check_not_captured("an operation of a library");
  std::vector<char> message(kMessageMax);
  kernels::Stream& stream = tensors::stream_of(device);
  FlowCall call{};
  call.device = device.kind == tensors::Device::cpu ? -1 : device.index;
  call.threads = stream.threads;
  call.stream = stream.native;
  call.input_count = static_cast<int32_t>(in.size());
  call.inputs = in.data();
  call.number_count = static_cast<int32_t>(numbers.size());
  call.numbers = numbers.data();
  call.output_count = 1;
  call.outputs = out.data();
  call.message = message.data();
  call.message_size = message.size();
  check(library, operation, call, operation.describe(&call));
  if (call.output_count < 1 || call.output_count > FLOW_OUTPUTS_MAX)
    throw tensors::TensorError(fmt::format("`{}` of {} describes {} outputs: there are 1 to {}",
                                           operation.name, library.path, call.output_count,
                                           FLOW_OUTPUTS_MAX));
  std::vector<Tensor> made;
  for (int32_t i = 0; i < call.output_count; i++) {
    FlowTensor& each = out[static_cast<size_t>(i)];
    kernels::Shape shape = described_shape(library, operation, each);
    made.push_back(Tensor::empty(static_cast<DType>(each.type), shape, device));
    each = plain(made.back().view());
  }
  check(library, operation, call, operation.run(&call));
  return made;
}

// Records the gradients of the inputs, by the operation that the library names as backward.
Tensor recorded(const OperationLibrary& library, const FlowOperation& operation, Tensor out,
                const std::vector<Tensor>& inputs, const std::vector<double>& numbers) {
  const FlowOperation* backward = library.find(operation.backward);
  std::vector<SavedTensor> saved;
  for (const Tensor& each : inputs) saved.emplace_back(each);
  auto back = [library, backward, numbers, saved, result = SavedTensor(out)](const Tensor& gradient,
                                                                             Gradients& to) {
    std::vector<Tensor> operands;
    for (const SavedTensor& each : saved) operands.push_back(each.get());
    operands.push_back(result.get());
    operands.push_back(gradient);
    std::vector<Tensor> gradients = run(library, *backward, operands, numbers);
    if (gradients.size() != saved.size())
      throw tensors::TensorError(fmt::format("`{}` of {} gives {} gradients for {} inputs",
                                             backward->name, library.path, gradients.size(),
                                             saved.size()));
    for (size_t i = 0; i < gradients.size(); i++)
      if (to.wants(i)) to.set(i, gradients[i]);
  };
  return tensors::record(operation.name, std::move(out), inputs, std::move(back));
}

// Upvalues: the library (a light userdata, which lives as long as the process), the operation.
int call_operation(lua_State* L) {
  const auto& library =
      *static_cast<const OperationLibrary*>(lua_touserdata(L, lua_upvalueindex(1)));
  const auto& operation =
      *static_cast<const FlowOperation*>(lua_touserdata(L, lua_upvalueindex(2)));
  std::vector<Tensor> inputs;
  std::vector<double> numbers;
  for (int index = 1; index <= lua_gettop(L); index++) {
    if (const Tensor* x = test_object(L, index); x != nullptr && numbers.empty()) {
      inputs.push_back(*x);
    } else if (lua_type(L, index) == LUA_TNUMBER) {
      numbers.push_back(lua_tonumber(L, index));
    } else {
      raise(L, fmt::format("`{}` takes tensors and then numbers; argument {} is {}", operation.name,
                           index, describe(L, index)));
    }
  }
  std::vector<Tensor> out = run(library, operation, inputs, numbers);
  if (tensors::is_recording(inputs)) {
    if (operation.backward == nullptr || out.size() != 1)
      throw tensors::TensorError(
          fmt::format("`{}` of {} has no backward, and the gradient of an input is wanted: call it "
                      "in flow.no_grad, or with x:detach()",
                      operation.name, library.path));
    out[0] = recorded(library, operation, out[0], inputs, numbers);
  }
  for (const Tensor& each : out) push_object(L, each);
  return static_cast<int>(out.size());
}

[[noreturn]] void reject(lua_State* L, const std::string& path, const std::string& why) {
  raise(L, fmt::format("flow.operations: {}: {}", path, why));
}

void check_library(lua_State* L, const OperationLibrary& library) {
  if (library.count < 0 || library.count > kOperationsMax)
    reject(L, library.path, fmt::format("it declares {} operations", library.count));
  for (int32_t i = 0; i < library.count; i++) {
    const FlowOperation& each = library.operations[i];
    std::string_view name = each.name == nullptr ? "" : each.name;
    bool good =
        !name.empty() && name.size() <= 100 && std::all_of(name.begin(), name.end(), [](char c) {
          return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
        });
    if (!good || each.describe == nullptr || each.run == nullptr)
      reject(L, library.path,
             fmt::format("operation {} needs a name of letters, digits and _, describe and run",
                         i + 1));
    if (library.find(name) != &each)
      reject(L, library.path, fmt::format("`{}` is declared twice", name));
    if (each.backward != nullptr && library.find(each.backward) == nullptr)
      reject(L, library.path,
             fmt::format("the backward of `{}`, `{}`, is missing", name, each.backward));
  }
}

// A file's identity: another file at the same path is another library.
struct FileIdentity {
  std::string path;
  uint64_t device = 0, inode = 0;
  int64_t size = 0, changed_ns = 0;
  auto operator<=>(const FileIdentity&) const = default;
};

FileIdentity identity_of(lua_State* L, const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode))
    reject(L, path, "it does not exist, or is not a regular file");
  return {path, info.st_dev, info.st_ino, info.st_size,
          info.st_ctim.tv_sec * int64_t{1'000'000'000} + info.st_ctim.tv_nsec};
}

// dlopen returns the first library for a path that it knows. So a replaced file is loaded under
// another name: that of a descriptor, which stays open.
void* open_copy(lua_State* L, const std::string& path) {
  int from = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  int copy = ::memfd_create("operations", MFD_CLOEXEC);
  bool good = from >= 0 && copy >= 0;
  for (ssize_t sent = 1; good && sent > 0;) {
    sent = ::sendfile(copy, from, nullptr, 1 << 30);
    good = sent >= 0;
  }
  int code = errno;
  if (from >= 0) ::close(from);
  if (good) return ::dlopen(fmt::format("/proc/self/fd/{}", copy).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (copy >= 0) ::close(copy);
  reject(L, path, fmt::format("it can't be read: {}", ::strerror(code)));
}

// Loads it; its own initializers run here.
const OperationLibrary& load(lua_State* L, const std::string& path, bool is_replaced) {
  void* handle = is_replaced ? open_copy(L, path) : ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) reject(L, path, fmt::format("it can't be loaded: {}", ::dlerror()));
  auto list = reinterpret_cast<decltype(&flow_operations)>(::dlsym(handle, "flow_operations"));
  if (list == nullptr)
    reject(L, path, "it exports no flow_operations: include <flow/operation.h> and define it");
  auto* library = new OperationLibrary;  // lives as long as the process, as the loaded library does
  library->path = path;
  library->operations = list(FLOW_OPERATION_ABI, &library->count);
  if (library->operations == nullptr)
    reject(L, path,
           fmt::format(
               "it does not support version {} of flow/operation.h: compile it with the header "
               "of this flow",
               FLOW_OPERATION_ABI));
  check_library(L, *library);
  return *library;
}

// Once per process.
const OperationLibrary& loaded(lua_State* L, const std::string& path) {
  static std::mutex mutex;
  static std::map<FileIdentity, const OperationLibrary*> libraries;
  std::lock_guard lock(mutex);
  FileIdentity identity = identity_of(L, path);
  auto found = libraries.find(identity);
  if (found != libraries.end()) return *found->second;
  bool is_replaced = std::any_of(libraries.begin(), libraries.end(),
                                 [&](const auto& each) { return each.first.path == path; });
  const OperationLibrary& library = load(L, path, is_replaced);
  libraries[identity] = &library;
  return library;
}

int open(lua_State* L) {
  std::string path = check_path(L, 1, "flow.operations");
  require_task(L, "flow.operations");
  std::error_code error;
  path = std::filesystem::absolute(path, error)
             .string();  // otherwise dlopen would search other folders
  reach_outside(L);      // the library may start programs
  const OperationLibrary* library = &loaded(L, path);
  lua_createtable(L, 0, library->count);
  for (int32_t i = 0; i < library->count; i++) {
    lua_pushlightuserdata(L, const_cast<OperationLibrary*>(library));
    lua_pushlightuserdata(L, const_cast<FlowOperation*>(&library->operations[i]));
    lua_pushcclosure(L, protected_call<call_operation>, 2);
    lua_setfield(L, -2, library->operations[i].name);
  }
  return 1;
}

}  // namespace

void open_operations(lua_State* L, int flow_table) {
  flow_table = lua_absindex(L, flow_table);
  lua_pushcfunction(L, open);
  lua_setfield(L, flow_table, "operations");
}

}  // namespace flow::lua
