// libcuda with our error type.
#include "kernels/jit/driver.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace flow::jit {
namespace {

// Constants of cuda.h.
constexpr int kJitErrorLog = 5, kJitErrorLogSize = 6;
constexpr int kThreadsMaxAttribute = 0, kDynamicSharedAttribute = 8;

constexpr size_t kLogMax = 8 << 10;
constexpr int64_t kThreadsMax = 1024, kThreadsDeepMax = 64;
constexpr int64_t kBlocksMax = INT32_MAX, kBlocksOtherMax = 65535;
constexpr int64_t kSharedUsual = 48 << 10, kSharedMax = 1 << 20;

Error error_of(const Driver& driver, const std::string& what, int code) {
  const char *name = nullptr, *text = nullptr;
  driver.GetErrorName(code, &name);
  driver.GetErrorString(code, &text);
  return environment_error(fmt::format("the GPU's driver can't {}: {} ({})", what,
                                       text == nullptr ? "unknown error" : text,
                                       name == nullptr ? std::to_string(code) : name));
}

Result<Driver> load_driver() {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return environment_error("the GPU's driver, libcuda.so.1, is not here");
  Driver driver;
  std::string missing;
  auto find = [&](auto& call, const char* name) {
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(::dlsym(library, name));
    if (call == nullptr) missing = name;
  };
#define FLOW_CU(name) find(driver.name, "cu" #name)
  FLOW_CU(GetErrorName);
  FLOW_CU(GetErrorString);
  FLOW_CU(ModuleLoadDataEx);
  FLOW_CU(ModuleGetFunction);
  FLOW_CU(FuncGetAttribute);
  FLOW_CU(FuncSetAttribute);
  FLOW_CU(LaunchKernel);
#undef FLOW_CU
  if (missing.empty()) return driver;
  return environment_error(fmt::format("the GPU's driver, libcuda.so.1, has no {}", missing));
}

}  // namespace

Result<const Driver*> system_driver() {
  static const Result<Driver> loaded = load_driver();
  if (!loaded.ok()) return loaded.error();
  return &*loaded;
}

Result<LoadedFunction> load_function(const Driver& driver, const KernelImage& image) {
  std::string log(kLogMax, '\0');
  int options[] = {kJitErrorLog, kJitErrorLogSize};
  void* values[] = {log.data(), reinterpret_cast<void*>(log.size())};
  void* module = nullptr;
  int code = driver.ModuleLoadDataEx(&module, image.bytes.c_str(), 2, options, values);
  if (code != 0) {
    Error error = error_of(driver, image.is_ptx ? "compile it for this GPU" : "load it", code);
    if (size_t length = ::strnlen(log.data(), log.size()); length > 0)
      error.message += ": " + log.substr(0, length);
    return error;
  }
  LoadedFunction function;
  code = driver.ModuleGetFunction(&function.handle, module, image.entry.c_str());
  if (code != 0) return error_of(driver, "find `" + image.entry + "` in it", code);
  code = driver.FuncGetAttribute(&function.threads_max, kThreadsMaxAttribute, function.handle);
  if (code != 0) return error_of(driver, "return its maximum number of threads", code);
  return function;
}

Status check_grid(const Grid& grid) {
  const int64_t(&blocks)[3] = grid.blocks, (&threads)[3] = grid.threads;
  auto is_within = [](int64_t n, int64_t low, int64_t high) { return n >= low && n <= high; };
  if (!is_within(blocks[0], 0, kBlocksMax) || !is_within(blocks[1], 0, kBlocksOtherMax) ||
      !is_within(blocks[2], 0, kBlocksOtherMax))
    return user_error(fmt::format("a grid of {} x {} x {} blocks: a GPU takes up to {}, {} and {}",
                                  blocks[0], blocks[1], blocks[2], kBlocksMax, kBlocksOtherMax,
                                  kBlocksOtherMax));
  if (!is_within(threads[0], 1, kThreadsMax) || !is_within(threads[1], 1, kThreadsMax) ||
      !is_within(threads[2], 1, kThreadsDeepMax) ||
      threads[0] * threads[1] * threads[2] > kThreadsMax)
    return user_error(fmt::format(
        "a block of {} x {} x {} threads: a GPU takes 1 to {}, {} and {}, and {} of them together",
        threads[0], threads[1], threads[2], kThreadsMax, kThreadsMax, kThreadsDeepMax,
        kThreadsMax));
  if (!is_within(grid.shared, 0, kSharedMax))
    return user_error(fmt::format("{} bytes of shared memory: 0 to {}", grid.shared, kSharedMax));
  return {};
}

Status launch(const Driver& driver, LoadedFunction& function, const Grid& grid, void* stream,
              std::vector<void*>& parameters) {
  FLOW_TRY(check_grid(grid));
  const int64_t(&threads)[3] = grid.threads;
  if (int64_t all = threads[0] * threads[1] * threads[2]; all > function.threads_max)
    return user_error(
        fmt::format("a block of {} threads: its use of registers limits it to {}; make `block` "
                    "smaller, or give the option --maxrregcount",
                    all, function.threads_max));
  if (std::find(grid.blocks, grid.blocks + 3, 0) != grid.blocks + 3) return {};
  if (grid.shared > std::max(kSharedUsual, function.shared_set)) {
    int code = driver.FuncSetAttribute(function.handle, kDynamicSharedAttribute,
                                       static_cast<int>(grid.shared));
    if (code != 0)
      return error_of(driver, fmt::format("give each block {} bytes of shared memory", grid.shared),
                      code);
    function.shared_set = grid.shared;
  }
  auto size = [](int64_t n) { return static_cast<unsigned>(n); };
  int code =
      driver.LaunchKernel(function.handle, size(grid.blocks[0]), size(grid.blocks[1]),
                          size(grid.blocks[2]), size(threads[0]), size(threads[1]),
                          size(threads[2]), size(grid.shared), stream, parameters.data(), nullptr);
  return code == 0 ? Status() : error_of(driver, "start it", code);
}

}  // namespace flow::jit
