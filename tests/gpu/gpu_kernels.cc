#include "tests/gpu/gpu_kernels.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <functional>

#include "kernels/cuda/device.hpp"
#include "kernels/jit/call.hpp"
#include "kernels/tensor/ops.hpp"

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
  if (with_speed && code == 0) measure();
  return code;
}

}  // namespace flow::gpu
