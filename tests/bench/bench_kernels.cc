// CPU kernels compared with their bounds: products with OpenBLAS on all its threads, with its own
// choice of code and with the best for this CPU; elements, reductions and rows with memcpy of the
// same number of bytes. The ratio is of speeds, ours to the bound's: 1 is equal.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/cpu/parallel.hpp"
#include "kernels/table.hpp"
#include "tests/bench/bench.hpp"

namespace flow::bench {
namespace {

using namespace kernels;

constexpr int64_t kBytes = 64 << 20;
constexpr int kRounds = 15;

// The best of both, in turns, because other work on the machine varies.
struct Pair {
  double ours = 1e9, bound = 1e9;
};
double time_of(const std::function<void()>& f, int times) {
  double began = seconds();
  for (int i = 0; i < times; i++) f();
  return (seconds() - began) / times;
}
Pair compare(const std::function<void()>& ours, const std::function<void()>& bound, int times) {
  Pair best;
  ours(), bound();
  for (int round = 0; round < kRounds; round++) {
    best.ours = std::min(best.ours, time_of(ours, times));
    best.bound = std::min(best.bound, time_of(bound, times));
  }
  return best;
}

void print(const std::string& name, const std::string& bound_name, double work, const Pair& best) {
  // In 1e9 per second, of operations or bytes.
  figure(name, work / best.ours / 1e9, bound_name, work / best.bound / 1e9);
}

using Gemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int,
                      float, float*, int);

struct Raw {
  Gemm sgemm = nullptr;
  void (*set_threads)(int) = nullptr;
};
Raw raw_blas() {
  void* library = ::dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  Raw raw;
  if (library != nullptr) {
    raw.sgemm = reinterpret_cast<Gemm>(::dlsym(library, "cblas_sgemm"));
    raw.set_threads = reinterpret_cast<void (*)(int)>(::dlsym(library, "openblas_set_num_threads"));
  }
  return raw;
}

constexpr int kSizes[] = {256, 512, 1024};

struct Matrices {
  explicit Matrices(int64_t n) : a(n * n), b(n * n), c(n * n) {
    for (int64_t i = 0; i < n * n; i++) {
      a[i] = static_cast<float>(i % 13) - 6;
      b[i] = static_cast<float>(i % 7) - 3;
    }
  }
  std::vector<float> a, b, c;
};

void run_raw(const Raw& raw, Matrices& m, int n) {
  raw.sgemm(101, 111, 111, n, n, n, 1, m.a.data(), n, m.b.data(), n, 0, m.c.data(), n);
}

int times_of(int n) { return std::max(1, 300'000'000 / (n * n * n)); }

// OpenBLAS with its own choice of code, in a process of its own.
void print_default_blas() {
  if (::fork() == 0) {
    Raw raw = raw_blas();
    if (raw.sgemm != nullptr) {
      for (int threads : {1, 2}) {
        raw.set_threads(threads);
        for (int n : kSizes) {
          Matrices m(n);
          auto run = [&] { run_raw(raw, m, n); };
          Pair best = compare(
              run, [] {}, times_of(n));
          fmt::print("openblas_by_itself_{}_threads_{} {:.3f}\n", n, threads,
                     2.0 * n * n * n / best.ours / 1e9);
        }
      }
    }
    std::fflush(stdout);
    ::_exit(0);
  }
  ::wait(nullptr);
}

void products() {
  const Kernels& table = cpu_kernels();
  for (int threads : {1, 2}) {
    for (int n : kSizes) {
      Matrices m(n);
      Stream stream;
      stream.threads = threads;
      View a = dense(DType::f32, {n, n}, m.a.data()), b = dense(DType::f32, {n, n}, m.b.data()),
           c = dense(DType::f32, {n, n}, m.c.data());
      auto ours = [&] {
        if (table.matmul(stream, a, b, 1, 0, nullptr, Unary::identity, c) != kDone) std::abort();
      };
      ours();  // loads the library as flow loads it: `raw` is the same
      Raw raw = raw_blas();
      Pair best;
      for (int round = 0; round < kRounds; round++) {
        ours();
        best.ours = std::min(best.ours, time_of(ours, times_of(n)));
        raw.set_threads(threads);
        run_raw(raw, m, n);
        best.bound = std::min(best.bound, time_of([&] { run_raw(raw, m, n); }, times_of(n)));
        raw.set_threads(1);
        std::this_thread::sleep_for(std::chrono::milliseconds(30));  // its threads go to sleep
      }
      print(fmt::format("matmul_{}_threads_{}", n, threads), "openblas", 2.0 * n * n * n, best);
    }
  }
}

void memory() {
  const Kernels& table = cpu_kernels();
  int64_t count = kBytes / 4;
  // All pages are written here, not only by one thread's first touch.
  std::vector<float> a(count, 1.5f), b(count, -0.5f), out(count, 0.0f), other(count, 0.0f);
  for (int64_t i = 0; i < count; i++) a[i] = static_cast<float>(i % 1000) * 0.01f - 5;
  Shape flat{count}, rows{count / 1024, 1024};
  View va = dense(DType::f32, flat, a.data()), vb = dense(DType::f32, flat, b.data()),
       vout = dense(DType::f32, flat, out.data());
  View ra = dense(DType::f32, rows, a.data()), rout = dense(DType::f32, rows, out.data());
  float total = 0;
  View sum = dense(DType::f32, {}, &total);
  for (int threads : {1, 2}) {
    Stream stream;
    stream.threads = threads;
    std::vector<char> room(1 << 20);
    auto run = [&](const char* name, double bytes, const std::function<int()>& ours) {
      stream.scratch = {room.data(), room.size(), 0, 0};
      Pair best = compare(
          [&] {
            stream.scratch.used = 0;
            if (ours() != kDone) std::abort();
          },
          [&] {
            cpu::parallel_for(threads, count, 1, [&](int64_t first, int64_t last) {
              std::memcpy(other.data() + first, a.data() + first,
                          static_cast<size_t>(last - first) * 4);
            });
          },
          1);
      double copied = 2.0 * kBytes;
      figure(fmt::format("{}_threads_{}", name, threads), bytes / best.ours / 1e9, "memcpy",
             copied / best.bound / 1e9);
    };
    run("copy", 2.0 * kBytes, [&] { return table.copy(stream, va, vout); });
    run("add", 3.0 * kBytes, [&] { return table.binary(stream, Binary::add, va, vb, vout); });
    run("gelu", 2.0 * kBytes, [&] { return table.unary(stream, Unary::gelu, va, vout); });
    run("gelu_tanh", 2.0 * kBytes, [&] { return table.unary(stream, Unary::gelu_tanh, va, vout); });
    // (a * 0.5 + 1) * a - (b + 2) * 0.25: six operations in one pass.
    FusedElementwise fused;
    fused.inputs = 2;
    auto step = [&](FusedStep::Kind kind, Binary op, int from, int with, int to, double x) {
      fused.step[fused.steps++] = {kind,
                                   static_cast<uint8_t>(op),
                                   static_cast<int8_t>(from),
                                   static_cast<int8_t>(with),
                                   static_cast<int8_t>(to),
                                   x,
                                   0};
    };
    constexpr int kRoom = kFusedInputs;
    step(FusedStep::number, Binary::mul, 0, 0, 0, 0.5);
    step(FusedStep::number, Binary::add, kRoom, 0, 1, 1);
    step(FusedStep::binary, Binary::mul, kRoom + 1, 0, 0, 0);
    step(FusedStep::number, Binary::add, 1, 0, 1, 2);
    step(FusedStep::number, Binary::mul, kRoom + 1, 0, 2, 0.25);
    step(FusedStep::binary, Binary::sub, kRoom, kRoom + 2, 1, 0);
    View both[] = {va, vb};
    const View* inputs = both;
    run("chain", 3.0 * kBytes,
        [&] { return table.fused_elementwise(stream, fused, inputs, vout); });
    run("sum", 1.0 * kBytes, [&] { return table.reduce(stream, Reduce::sum, va, 0, sum); });
    run("softmax", 2.0 * kBytes, [&] { return table.softmax(stream, false, ra, rout); });
  }
}

}  // namespace
}  // namespace flow::bench

int main() {
  flow::bench::print_default_blas();
  flow::bench::products();
  flow::bench::memory();
}
