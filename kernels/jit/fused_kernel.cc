#include "kernels/jit/fused_kernel.hpp"

#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kernels/jit/fused_source.hpp"
#include "kernels/jit/fused_walk.hpp"

namespace flow::jit {

using kernels::FusedElementwise;
using kernels::kBlockThreads;
using kernels::kFusedInputs;
using kernels::View;

namespace {

constexpr const char* kName = "flow_fused";
constexpr size_t kFunctionsMax = 1024;  // per process

// By key and device. Empty: it could not be compiled or loaded, and is not tried again. A module
// is never unloaded: a launched kernel may still run.
struct FusedTable {
  std::mutex mutex;
  std::map<std::pair<std::string, int>, std::optional<LoadedFunction>> functions;
};
FusedTable& fused_table() {
  static auto* made = new FusedTable;
  return *made;
}

std::optional<LoadedFunction> load(const Driver& driver, const std::string& source, int arch,
                                   const Cache& cache) {
  if (arch == 0) return std::nullopt;
  CompileRequest order{kName, source, fused_options(), arch, fused_headers()};
  auto output = compile_cached(order, cache);
  if (!output.ok() || !output->ok) return std::nullopt;
  auto function = load_function(driver, output->image);
  if (!function.ok() || function->threads_max < kBlockThreads) return std::nullopt;
  return *function;
}

// The chain's numbers in the type of arithmetic.
struct PackedNumbers {
  alignas(8) char bytes[kernels::kFusedSteps * 2 * sizeof(double)] = {};

  PackedNumbers(const std::vector<double>& numbers, DType dtype) {
    for (size_t i = 0; i < numbers.size(); i++) {
      auto rounded = static_cast<float>(numbers[i]);
      if (dtype == DType::f64)
        std::memcpy(bytes + i * sizeof(double), &numbers[i], sizeof(double));
      else
        std::memcpy(bytes + i * sizeof(float), &rounded, sizeof(float));
    }
  }
};

// Chains with equal keys have equal sources.
std::string key_of(const FusedElementwise& fused, DType dtype, int width) {
  std::string key{static_cast<char>(dtype), static_cast<char>(width),
                  static_cast<char>(fused.inputs)};
  for (int i = 0; i < fused.steps; i++) {
    const kernels::FusedStep& step = fused.step[i];
    key += {static_cast<char>(step.kind), static_cast<char>(step.op), static_cast<char>(step.a),
            static_cast<char>(step.b), static_cast<char>(step.to)};
  }
  return key;
}

template <int n>
bool launch_over(const Driver& driver, const FusedLaunch& call, const std::function<int()>& arch_of,
                 const std::function<Cache()>& cache) {
  if (call.fused.inputs + 1 != n) {
    if constexpr (n <= kFusedInputs) return launch_over<n + 1>(driver, call, arch_of, cache);
    return false;
  }
  const View* views[n];
  for (int i = 0; i + 1 < n; i++) views[i] = &call.inputs[i];
  views[n - 1] = &call.out;
  FusedWalk<n> walk;
  DType dtype = call.out.dtype;
  int width = make_walk(walk, fused_pack(dtype), views);
  if (width == 0 || !fused_compiles_fast(call.fused, width)) return false;
  std::string key = key_of(call.fused, dtype, width);
  LoadedFunction function;
  {
    std::lock_guard<std::mutex> hold(fused_table().mutex);
    auto& all = fused_table().functions;
    auto at = all.find({key, call.device});
    if (at == all.end()) {
      if (call.out.count() < kFusedElementsMin || all.size() >= kFunctionsMax) return false;
      std::string source = fused_source(call.fused, dtype, width, kName);
      auto loaded = load(driver, source, arch_of(), cache());
      at = all.emplace(std::pair(key, call.device), loaded).first;
    }
    if (!at->second) return false;
    function = *at->second;
  }
  PackedNumbers numbers(fused_numbers(call.fused), dtype);
  std::vector<void*> parameters{numbers.bytes, &walk};
  Grid grid;
  grid.blocks[0] = kernels::blocks_for(walk.index_math.count);
  grid.threads[0] = kBlockThreads;
  return launch(driver, function, grid, call.stream, parameters).ok();
}

}  // namespace

bool launch_fused(const Driver& driver, const FusedLaunch& call,
                  const std::function<int()>& arch_of, const std::function<Cache()>& cache) {
  return launch_over<2>(driver, call, arch_of, cache);
}

}  // namespace flow::jit
