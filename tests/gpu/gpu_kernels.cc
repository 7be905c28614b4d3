#include "tests/gpu/gpu_kernels.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/cuda/device.hpp"
#include "kernels/jit/call.hpp"
#include "kernels/jit/fused_kernel.hpp"
#include "kernels/shared/philox.hpp"
#include "kernels/shared/types.hpp"
#include "kernels/tensor/ops.hpp"
#include "tests/kernels/jit/chains.hpp"

namespace flow::gpu {
namespace {

using tensors::Number;
using tensors::Tensor;

const tensors::Device kGpu{tensors::Device::cuda, 0};

constexpr const char* kSaxpy = R"(
__global__ void saxpy(float a, const float* x, float* y, long long n) {
  long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += step) y[i] += a * x[i];
}
)";
// More shared memory than a block's default.
constexpr const char* kReversed = R"(
extern "C" __global__ void reversed(const double* x, double* y, int n) {
  extern __shared__ double room[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) room[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = room[n - 1 - i];
}
)";
constexpr const char* kTypes = R"(
__global__ void types(float a, double b, int c, long long d, unsigned char e, bool f, double* out) {
  out[0] = a; out[1] = b; out[2] = c; out[3] = d; out[4] = e; out[5] = f;
}
)";

jit::ScriptKernel program(const char* name, const char* text, const char* signature) {
  jit::KernelSource source;
  source.name = std::string(name);
  source.text = text;
  source.signature = *jit::parse_signature(signature);
  source.file = name;
  return jit::ScriptKernel(std::move(source));
}

// `ahead`: for a GPU that NVRTC does not know, for which the driver compiles PTX.
jit::LoadedFunction& function_of(jit::ScriptKernel& program, int ahead = 0) {
  void* stream = tensors::stream_of(kGpu).native;  // makes its context current
  cuda::DeviceInfo info = *cuda::describe(0);
  auto driver = jit::system_driver();
  if (stream == nullptr || !driver.ok()) throw tensors::TensorError("no driver");
  auto found = program.load(**driver, 0, info.major * 10 + info.minor + ahead, jit::Cache(""));
  if (!found.ok()) throw tensors::TensorError(found.error().message);
  return **found;
}

void start(jit::ScriptKernel& program, jit::KernelLaunch& call, const jit::Grid& grid) {
  jit::LoadedFunction* known = program.loaded(0);
  jit::LoadedFunction& function = known != nullptr ? *known : function_of(program);
  call.run(**jit::system_driver(), function, grid, tensors::stream_of(kGpu).native);
}

Tensor count_up(DType dtype, int64_t count) {
  Tensor x = Tensor::empty(dtype, {count});
  for (int64_t i = 0; i < count; i++) {
    if (dtype == DType::f32) x.view().at<float>()[i] = static_cast<float>(i);
    if (dtype == DType::f64) x.view().at<double>()[i] = static_cast<double>(i);
  }
  return tensors::move(x, kGpu);
}

bool saxpy_with_gaps() {
  constexpr int64_t count = 1'000'003;
  jit::ScriptKernel saxpy =
      program("saxpy", kSaxpy, "a: f32, x: in f32, y: inout f32, n: count of y");
  Tensor x = count_up(DType::f32, 2 * count), y = count_up(DType::f32, 2 * count);
  jit::KernelLaunch call(saxpy.source());
  call.set_number(0, Number::of(0.5));
  call.set_tensor(1, tensors::narrow(x, 0, 1, count, 2));
  call.set_tensor(2, tensors::narrow(y, 0, 0, count, 2));
  start(saxpy, call, call.grid_over_elements(256, 4));
  Tensor got = tensors::move(y, {});
  for (int64_t i = 0; i < 2 * count; i++) {
    auto at = static_cast<float>(i);
    if (got.view().at<float>()[i] != (i % 2 == 0 ? at + 0.5f * (at + 1) : at)) return false;
  }
  return true;
}

bool reversed_in_shared_memory() {
  constexpr int64_t count = 100 << 7;  // 100 KiB
  jit::ScriptKernel reversed =
      program("reversed", kReversed, "x: in f64, y: out f64 like x, n: i32 count of x");
  jit::KernelLaunch call(reversed.source());
  call.set_tensor(0, count_up(DType::f64, count));
  Tensor y = Tensor::empty(DType::f64, {count}, kGpu);
  call.set_tensor(1, y);
  jit::Grid grid;
  grid.shared = count * 8;
  start(reversed, call, grid);
  Tensor got = tensors::move(y, {});
  for (int64_t i = 0; i < count; i++)
    if (got.view().at<double>()[i] != static_cast<double>(count - 1 - i)) return false;
  return true;
}

bool numbers_of_every_type(int ahead) {
  jit::ScriptKernel types =
      program("types", kTypes, "a: f32, b: f64, c: i32, d: i64, e: u8, f: bool, out: out f64");
  function_of(types, ahead);
  jit::KernelLaunch call(types.source());
  const Number numbers[] = {Number::of(0.5),          Number::of(0.1),
                            Number::of(int64_t{-3}),  Number::of(int64_t{1} << 40),
                            Number::of(int64_t{255}), Number::of(int64_t{1})};
  for (size_t at = 0; at < std::size(numbers); at++) call.set_number(at, numbers[at]);
  Tensor out = Tensor::empty(DType::f64, {6}, kGpu);
  call.set_tensor(6, out);
  jit::Grid one;
  one.threads[0] = 1;
  start(types, call, one);
  Tensor got = tensors::move(out, {});
  for (size_t at = 0; at < std::size(numbers); at++)
    if (got.view().at<double>()[at] != numbers[at].real) return false;
  return true;
}

// ---- fused chains

// Launches the compiled chain; an exception says that it could not be compiled or loaded.
void run_chain(const kernels::FusedElementwise& chain, const std::vector<Tensor>& operands) {
  std::vector<kernels::View> views;
  for (const Tensor& each : operands) views.push_back(each.view());
  void* stream = tensors::stream_of(kGpu).native;
  auto driver = jit::system_driver();
  if (!driver.ok()) throw tensors::TensorError(driver.error().message);
  cuda::DeviceInfo info = *cuda::describe(0);
  bool done = jit::launch_fused(
      **driver, {chain, views.data(), views.back(), 0, stream},
      [&] { return info.major * 10 + info.minor; }, [] { return jit::Cache(""); });
  if (!done) throw tensors::TensorError("a fused chain was not compiled");
}
void interpret_chain(const kernels::FusedElementwise& chain, const std::vector<Tensor>& operands) {
  std::vector<kernels::View> views;
  for (const Tensor& each : operands) views.push_back(each.view());
  const kernels::View* inputs = views.data();
  tensors::call(kGpu, &kernels::Kernels::fused_elementwise, "fuse", chain, inputs, views.back());
}

// Numbers of all sizes and both signs, in the inputs; the last one is the result.
std::vector<Tensor> chain_operands(DType dtype, int inputs, int64_t count) {
  std::vector<Tensor> made;
  for (int k = 0; k < inputs; k++) {
    Tensor x = Tensor::empty(DType::f32, {count});
    for (int64_t i = 0; i < count; i++) {
      uint32_t word = kernels::random_block(5, static_cast<uint64_t>(i * inputs + k),
                                            kernels::RandomUse::uniform)
                          .word[0];
      float unit = kernels::unit_float(word) * 2 - 1;
      x.view().at<float>()[i] = word % 3 == 0 ? unit * 30 : word % 3 == 1 ? unit : unit * 1e-3f;
    }
    made.push_back(tensors::cast(tensors::move(x, kGpu), dtype));
  }
  made.push_back(Tensor::empty(dtype, {count}, kGpu));
  return made;
}

// The compiled kernel has the bits of the interpreter; all NaNs count as one.
bool has_same_bits(const kernels::FusedElementwise& chain, DType dtype) {
  constexpr int64_t count = jit::kFusedElementsMin + 3;
  std::vector<Tensor> ours = chain_operands(dtype, chain.inputs, count), theirs = ours;
  theirs.back() = Tensor::empty(dtype, {count}, kGpu);
  run_chain(chain, ours);
  interpret_chain(chain, theirs);
  Tensor a = tensors::move(ours.back(), {}), b = tensors::move(theirs.back(), {});
  return kernels::visit_float(dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t i = 0; i < count; i++) {
      T x = a.view().at<T>()[i], y = b.view().at<T>()[i];
      bool is_nan = std::isnan(kernels::convert<double>(x));
      if (is_nan != std::isnan(kernels::convert<double>(y))) return false;
      if (!is_nan && std::memcmp(&x, &y, sizeof x) != 0) return false;
    }
    return true;
  });
}

bool fused_chains() {
  std::vector<kernels::FusedElementwise> chains = jit::all_chains();
  for (const auto& chain : chains)
    if (!has_same_bits(chain, DType::f32)) return false;
  for (DType dtype : {DType::f64, DType::f16, DType::bf16})
    if (!has_same_bits(chains.back(), dtype)) return false;
  return true;
}

void measure_chain() {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t count = int64_t{1} << 26;
  kernels::FusedElementwise chain = jit::all_chains().back();
  for (DType dtype : {DType::f32, DType::bf16}) {
    std::vector<Tensor> operands = chain_operands(dtype, chain.inputs, 1 << 16);
    for (Tensor& each : operands) each = Tensor::zeros(dtype, {count}, kGpu);
    for (auto run : {run_chain, interpret_chain}) {
      double best = 1e9;
      for (int round = 0; round < 5; round++) {
        tensors::wait_for(kGpu);
        auto begin = Clock::now();
        for (int i = 0; i < 10; i++) run(chain, operands);
        tensors::wait_for(kGpu);
        best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count() / 10);
      }
      fmt::print("a fused chain of {} steps, {}, {:<12} {:>9.1f} us {:>9.1f} GB/s\n", chain.steps,
                 dtype_name(dtype), run == run_chain ? "compiled" : "interpreted", best * 1e6,
                 static_cast<double>(operands.size() * dtype_size(dtype)) * count / best / 1e9);
    }
  }
}

void measure() {
  using Clock = std::chrono::steady_clock;
  jit::ScriptKernel saxpy =
      program("saxpy", kSaxpy, "a: f32, x: in f32, y: inout f32, n: count of y");
  function_of(saxpy);
  for (int64_t count : {int64_t{1}, int64_t{1} << 28}) {
    jit::KernelLaunch call(saxpy.source());
    call.set_number(0, Number::of(0.5));
    call.set_tensor(1, Tensor::zeros(DType::f32, {count}, kGpu));
    call.set_tensor(2, Tensor::zeros(DType::f32, {count}, kGpu));
    constexpr int times = 100;
    double best = 1e9;
    for (int round = 0; round < 5; round++) {
      tensors::wait_for(kGpu);
      auto begin = Clock::now();
      for (int i = 0; i < times; i++) start(saxpy, call, call.grid_over_elements(256, 4));
      tensors::wait_for(kGpu);
      best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count() / times);
    }
    fmt::print("a script's saxpy of {:<10} {:>9.1f} us {:>9.1f} GB/s\n", count, best * 1e6,
               12.0 * static_cast<double>(count) / best / 1e9);
  }
}

}  // namespace

int check_kernels(bool with_speed) {
  if (auto compiler = jit::Compiler::get(); !compiler.ok()) {
    fmt::print("scripts' kernels were not checked: {}\n", compiler.error().message);
    return 0;
  }
  struct Check {
    const char* name;
    bool (*holds)();
  };
  int code = 0;
  for (Check check : {Check{"gaps", saxpy_with_gaps},
                      {"shared memory", reversed_in_shared_memory},
                      {"numbers", [] { return numbers_of_every_type(0); }},
                      {"fused chains", fused_chains},
                      {"PTX", [] { return numbers_of_every_type(1); }}}) {
    std::string problem = "other numbers";
    bool holds = false;
    try {
      holds = check.holds();
    } catch (const tensors::TensorError& failure) {
      problem = failure.what();
    }
    fmt::print("a script's kernel: {:<20} {}\n", check.name, holds ? "ok" : "MISS " + problem);
    if (!holds) code = 1;
  }
  if (with_speed && code == 0) measure(), measure_chain();
  return code;
}

}  // namespace flow::gpu
