// One command for a machine with a GPU. It compares every row of the CUDA table with the suite that
// the emulator also runs, and with the CPU rows on the same operands; twice, for the same bits.
// Then it measures some rows relative to the device's speed in the same run. Exits with 1 on a
// mismatch, and with 0 and a message without a GPU.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "kernels/cuda/cublaslt.hpp"
#include "kernels/cuda/cudnn.hpp"
#include "tests/gpu/gpu_bench.hpp"
#include "tests/gpu/gpu_kernels.hpp"
#include "tests/gpu/gpu_large.hpp"
#include "tests/gpu/gpu_products.hpp"
#include "tests/gpu/gpu_same_bits.hpp"
#include "tests/kernels/suite/suite.hpp"

namespace flow::gpu {
namespace {

using namespace kernels;
using suite::Array;

// Copies operands to the device with their gaps, and back.
class DeviceRunner : public suite::Runner {
 public:
  /// Without repeats: one call, whose result is not compared with the CPU's row.
  DeviceRunner(const Kernels& table, void* stream, bool repeats)
      : table_(table), stream_(stream), repeats_(repeats) {}
  const Kernels& table() const override { return table_; }

  std::string run(const std::vector<Array*>& operands, const suite::Call& call) override {
    std::vector<std::vector<char>> before;
    std::vector<std::unique_ptr<Room>> rooms;
    std::vector<View> views;
    for (Array* each : operands) {
      before.emplace_back();
      rooms.push_back(nullptr);
      views.emplace_back();
      if (!each) continue;
      before.back().assign(each->memory(), each->memory() + each->bytes());
      rooms.back() = std::make_unique<Room>(each->bytes(), stream_);
      views.back() = each->view();
      // With the same alignment as in host memory.
      views.back().data = rooms.back()->data() + (each->view().data - each->memory());
    }
    std::string error = once(operands, before, rooms, views, call);
    if (!error.empty() || !repeats_) return error;
    std::vector<std::vector<char>> first;
    for (Array* each : operands)
      first.emplace_back(each ? each->memory() : nullptr,
                         each ? each->memory() + each->bytes() : nullptr);
    error = once(operands, before, rooms, views, call);
    if (!error.empty()) return error;
    for (size_t i = 0; i < operands.size(); i++)
      if (operands[i] && !std::equal(first[i].begin(), first[i].end(), operands[i]->memory()))
        return "other bits the second time";
    return against_cpu(operands, before, first, call);
  }

  // Relative difference from the CPU's results, where it exceeds the type's rounding.
  double worst = 0;

 private:
  std::string once(const std::vector<Array*>& operands,
                   const std::vector<std::vector<char>>& before,
                   const std::vector<std::unique_ptr<Room>>& rooms, const std::vector<View>& views,
                   const suite::Call& call) {
    for (size_t i = 0; i < operands.size(); i++)
      if (operands[i])
        must(cuda::copy_to_device(rooms[i]->data(), before[i].data(), before[i].size(), stream_));
    Room word(sizeof(int64_t), stream_);
    must(cuda::set_bytes(word.data(), 0, sizeof(int64_t), stream_));
    Stream stream;
    stream.native = stream_;
    stream.fault = reinterpret_cast<int64_t*>(word.data());
    std::unique_ptr<Room> scratch;
    int code = call(table_, stream, views.data());
    if (code == kNeedsScratch) {
      size_t bytes = stream.scratch.needed;
      scratch = std::make_unique<Room>(bytes, stream_);
      must(cuda::set_bytes(scratch->data(), 0xff, bytes, stream_));
      stream.scratch = {scratch->data(), bytes, 0, 0};
      code = call(table_, stream, views.data());
    }
    if (code == kUnsupported) return "unsupported";
    if (code != kDone) return fmt::format("error {}: {}", code, table_.error_text(code));
    for (size_t i = 0; i < operands.size(); i++)
      if (operands[i])
        must(cuda::copy_to_host(operands[i]->memory(), rooms[i]->data(), operands[i]->bytes(),
                                stream_));
    must(cuda::copy_to_host(reinterpret_cast<char*>(&fault), word.data(), sizeof fault, stream_));
    must(cuda::wait_for(stream_));
    return "";
  }

  // Runs the CPU's row on the same operands and records the difference, relative to the largest
  // element
  // of the result or of what it is computed from: where numbers cancel, both have only rounding
  // left.
  std::string against_cpu(const std::vector<Array*>& operands,
                          const std::vector<std::vector<char>>& before,
                          const std::vector<std::vector<char>>& device, const suite::Call& call) {
    for (size_t i = 0; i < operands.size(); i++)
      if (operands[i]) std::copy(before[i].begin(), before[i].end(), operands[i]->memory());
    int64_t kept = fault;
    suite::HostRunner host(cpu_kernels(), [](bool) {});
    std::string error = host.run(operands, call);
    fault = kept;
    double largest_read = 0;
    for (size_t i = 0; i < operands.size(); i++)
      if (operands[i] && is_float(operands[i]->dtype()) && device[i] == before[i])
        largest_read = std::max(largest_read, largest_of(operands[i]->values()));
    if (error.empty())
      for (size_t i = 0; i < operands.size(); i++) {
        Array* each = operands[i];
        if (!each || !is_float(each->dtype())) continue;
        std::vector<double> of_cpu = each->values();
        std::copy(device[i].begin(), device[i].end(), each->memory());
        double largest = std::max(largest_of(of_cpu), largest_read), apart = 0;
        for (int64_t at = 0; at < each->count(); at++) {
          double x = of_cpu[static_cast<size_t>(at)], y = each->at(at);
          if (std::isfinite(x) && std::isfinite(y))
            apart = std::max(apart, std::fabs(x - y));
          else if (std::isnan(x) != std::isnan(y))
            return "a NaN where the CPU has none, or the other way round";
        }
        if (largest > 0 && (each->dtype() == DType::f32 || each->dtype() == DType::f64))
          worst = std::max(worst, apart / largest);
      }
    for (size_t i = 0; i < operands.size(); i++)
      if (operands[i]) std::copy(device[i].begin(), device[i].end(), operands[i]->memory());
    return "";
  }

  static double largest_of(const std::vector<double>& values) {
    double largest = 0;
    for (double each : values)
      if (std::isfinite(each)) largest = std::max(largest, std::fabs(each));
    return largest;
  }

  const Kernels& table_;
  void* stream_;
  const bool repeats_;
};

// If cuDNN computed the convolutions so far, checks flow's own kernels too.
void check_own_convolutions(suite::Suite& all) {
  cuda::CudnnUse use = cuda::cudnn_use();
  fmt::print("# pictures: {} of {} convolutions by cuDNN ({})\n", use.done, use.asked, use.library);
  if (use.done == 0) return;
  cuda::use_cudnn(false);
  suite::check_conv_pool(all);
  cuda::use_cudnn(true);
}

// The same for attention.
void check_own_attention(suite::Suite& all) {
  cuda::AttentionUse use = cuda::attention_use();
  fmt::print("# attention: {} of {} calls with whole blocks of rows by cuDNN{}{}\n", use.done,
             use.asked, use.problem.empty() ? "" : ": ", use.problem);
  if (!use.problem.empty()) {
    all.lines["attention"].misses++;
    all.misses.push_back(use.problem);
  }
  if (use.done == 0) return;
  cuda::use_cudnn(false);
  suite::check_whole_attention(all);
  cuda::use_cudnn(true);
}

// The library that computed a row, if it is not always this folder's kernel.
const char* doer_of(const std::string& row) {
  if (row.starts_with("attention"))
    return cuda::attention_use().done > 0 ? ", by cuDNN and by flow" : ", by flow";
  if (!row.starts_with("conv2d")) return "";
  return cuda::cudnn_use().done > 0 ? ", by cuDNN and by flow" : ", by flow: no cuDNN";
}

// `only` names one family; empty means all. `of_a_kind`: see suite::Suite::most_of_a_kind.
int check_rows(void* stream, const std::string& only, int64_t of_a_kind) {
  DeviceRunner runner(*cuda_kernels(), stream, of_a_kind == 0);
  suite::Suite all(runner, suite::test_seed());
  all.most_of_a_kind = of_a_kind;
  all.by_library = cuda::lt_version() > 0;
  struct Family {
    const char* name;
    void (*check)(suite::Suite&);
  };
  fmt::print("{:<24} {:>7} {:>12}  {}\n", "row", "checks", "worst error", "");
  for (Family family : {Family{"elements", suite::check_elementwise},
                        {"reductions", suite::check_reductions},
                        {"rows", suite::check_rows},
                        {"norms", suite::check_norms},
                        {"products", suite::check_matmuls},
                        {"indices", suite::check_indices},
                        {"attention", suite::check_attention},
                        {"pictures", suite::check_conv_pool},
                        {"optimizers", suite::check_optimizers},
                        {"choosing", suite::check_choosing},
                        {"random", suite::check_random},
                        {"finance", suite::check_finance}}) {
    if (!only.empty() && only != family.name) continue;
    runner.worst = 0;
    family.check(all);
    if (family.check == suite::check_conv_pool) check_own_convolutions(all);
    if (family.check == suite::check_attention) check_own_attention(all);
    if (of_a_kind == 0)
      fmt::print("# {}: f32 and f64 are within {:.1e} of the CPU's\n", family.name, runner.worst);
  }
  int64_t misses = 0;
  for (const auto& [row, line] : all.lines) {
    misses += line.misses;
    fmt::print("{:<24} {:>7} {:>12.1e}  {}{}\n", row, line.checks, line.worst_error,
               line.misses ? fmt::format("MISS {}", line.misses) : "ok", doer_of(row));
  }
  for (const std::string& miss : all.misses) fmt::print("{}\n", miss);
  return misses > 0 ? 1 : 0;
}

// ---- speed

// The least share of its ceiling, in percent, that the implementation of a row should reach on any
// GPU; 0: no floor. By the beginning of the row's name; the longest one counts.
double floor_of(const std::string& name) {
  constexpr std::pair<std::string_view, double> kFloors[] = {
      {"copy", 85},
      {"add", 85},
      {"gelu_tanh", 85},
      {"cast", 80},
      {"sum", 75},
      {"softmax", 80},
      {"layer_norm", 80},
      {"layer_norm_backward", 70},
      {"rms_norm", 80},
      {"cross_entropy", 70},
      {"adamw", 85},
      {"matmul 8192 bf16", 95},
      {"matmul 4096 bf16", 90},
      {"matmul 4096 bias gelu bf16", 85},
      {"attention bf16 64", 35},
      {"attention bf16 128", 45},
      {"attention f16 64", 35},
      {"attention f16 128", 45},
      {"attention_backward bf16 64", 22},
      {"attention_backward bf16 128", 30},
      {"attention_backward f16 64", 22},
      {"attention_backward f16 128", 30},
  };
  std::pair<std::string_view, double> found;
  for (const auto& each : kFloors)
    if (name.starts_with(each.first) && each.first.size() > found.first.size()) found = each;
  return found.second;
}

int below_floor = 0;  // rows

void print_speed(const std::string& name, double amount, double seconds, double ceiling,
                 const char* unit) {
  double percent = 100 * amount / seconds / ceiling, floor = floor_of(name);
  bool is_below = percent < floor;
  below_floor += is_below ? 1 : 0;
  fmt::print("{:<36} {:>9.1f} us {:>9.1f} {}  {:>5.1f}% of the ceiling{}\n", name, seconds * 1e6,
             amount / seconds / 1e9, unit, percent,
             is_below ? fmt::format(", below {:.0f}%", floor) : "");
}

// A ResNet layer in all three directions, by cuDNN if available and by flow.
void measure_convolutions(Bench& b, double ceiling) {
  constexpr int64_t n = 64, channels = 128, size = 56, window = 3;
  Conv2d o;
  o.padding[0] = o.padding[1] = 1;
  double amount = 2.0 * n * channels * size * size * channels * window * window;
  for (DType dtype : {DType::f32, DType::bf16}) {
    View x = b.random(dtype, {n, channels, size, size}), y = b.empty(dtype, x.shape);
    View w = b.random(dtype, {channels, channels, window, window}),
         bias = b.random(dtype, {channels});
    View grad = b.random(dtype, x.shape), dx = b.empty(dtype, x.shape),
         dw = b.empty(dtype, w.shape);
    auto row = [&](const char* name, const std::function<int()>& call) {
      for (bool by_cudnn : {true, false}) {
        cuda::use_cudnn(by_cudnn);
        int64_t before = cuda::cudnn_use().done;
        double seconds = time_of(b, call);
        if (by_cudnn && cuda::cudnn_use().done == before) continue;
        std::string text =
            fmt::format("{} {} {}", name, dtype_name(dtype), by_cudnn ? "cuDNN" : "flow");
        print_speed(text, amount, seconds, ceiling, "GFLOP/s");
      }
      cuda::use_cudnn(true);
    };
    row("conv2d bias", [&] { return b.table.conv2d(b.stream, o, x, w, &bias, y); });
    row("conv2d", [&] { return b.table.conv2d(b.stream, o, x, w, nullptr, y); });
    row("conv2d_backward_input",
        [&] { return b.table.conv2d_backward_input(b.stream, o, grad, w, dx); });
    row("conv2d_backward_weight",
        [&] { return b.table.conv2d_backward_weight(b.stream, o, grad, x, dw); });
    b.clear();
  }
}

void measure_attention(Bench& b, DType dtype, int64_t width, bool causal, double ceiling) {
  constexpr int64_t batches = 4, heads = 16, rows = 2048;
  Shape shape{batches, heads, rows, width};
  View q = b.random(dtype, shape), k = b.random(dtype, shape), v = b.random(dtype, shape);
  View grad = b.random(dtype, shape), out = b.empty(dtype, shape);
  View dq = b.empty(dtype, shape), dk = b.empty(dtype, shape), dv = b.empty(dtype, shape);
  View lse = b.empty(DType::f64, {batches, heads, rows});
  Attention options{causal, 1 / std::sqrt(static_cast<double>(width))};
  double product = 2.0 * batches * heads * rows * rows * static_cast<double>(width);
  if (causal) product /= 2;  // half of it is masked
  std::string what = fmt::format(" {} {}{}", dtype_name(dtype), width, causal ? " causal" : "");
  // The first call of cuDNN makes its plan and checks it; time_of() does not count it.
  auto row = [&](const std::string& name, double amount, const std::function<int()>& call) {
    for (bool by_cudnn : {true, false}) {
      cuda::use_cudnn(by_cudnn);
      int64_t before = cuda::attention_use().done;
      double seconds = time_of(b, call);
      if (by_cudnn && cuda::attention_use().done == before) continue;
      print_speed(name + what + (by_cudnn ? " cuDNN" : " flow"), amount, seconds, ceiling,
                  "GFLOP/s");
    }
    cuda::use_cudnn(true);
  };
  row("attention", 2 * product,
      [&] { return b.table.attention(b.stream, options, q, k, v, out, lse); });
  row("attention_backward", 5 * product, [&] {
    return b.table.attention_backward(b.stream, options, q, k, v, out, lse, grad, dq, dk, dv);
  });
  b.clear();
}

// FLOP/s of the fastest product that cuBLASLt offers, and flow's product beside it. Without the
// library a miss, and flow's own rate.
double product_ceiling(Bench& b) {
  constexpr int64_t n = 8192;
  Result<double> raw = raw_product_rate(b.stream.native, n);
  View x = b.random(DType::bf16, {n, n}), y = b.random(DType::bf16, {n, n});
  View z = b.empty(DType::bf16, {n, n});
  double seconds =
      time_of(b, [&] { return b.table.matmul(b.stream, x, y, 1, 0, nullptr, Unary::identity, z); });
  b.clear();
  constexpr double amount = 2.0 * n * n * n;
  if (!raw) {
    fmt::print("MISS products have no ceiling: {}\n", raw.error().message);
    below_floor++;
    return amount / seconds;
  }
  print_speed("matmul 8192 bf16", amount, seconds, *raw, "GFLOP/s");
  return *raw;
}

// One query for each head and many keys, as in generation with a cache; the ceiling is a copy.
void measure_decoding(Bench& b, DType dtype, int64_t groups, double ceiling) {
  constexpr int64_t batches = 8, heads = 32, keys = 8192, width = 128;
  View q = b.random(dtype, {batches, heads, 1, width}), out = b.empty(dtype, q.shape);
  View k = b.random(dtype, {batches, groups, keys, width}), v = b.random(dtype, k.shape);
  View lse = b.empty(DType::f64, {batches, heads, 1});
  Attention options{true, 1 / std::sqrt(static_cast<double>(width))};
  double seconds =
      time_of(b, [&] { return b.table.attention(b.stream, options, q, k, v, out, lse); });
  print_speed(fmt::format("one query {} {} groups", dtype_name(dtype), groups),
              2 * static_cast<double>(k.bytes()), seconds, ceiling, "GB/s   ");
  b.clear();
}

void measure(void* native) {
  Bench b(native);
  constexpr size_t bytes = size_t{1} << 30;
  double copied = 0;
  {
    Room from(bytes, native), to(bytes, native);
    double seconds =
        time_of(native, [&] { must(cuda::copy_on_device(to.data(), from.data(), bytes, native)); });
    copied = 2.0 * bytes / seconds;
  }
  double products = product_ceiling(b);
  fmt::print("ceilings of this run: {:.0f} GB/s copied, {:.0f} GFLOP/s in a bf16 product of 8192\n",
             copied / 1e9, products / 1e9);
  auto moves = [&](const char* name, double amount, const std::function<int()>& call) {
    print_speed(name, amount, time_of(b, call), copied, "GB/s   ");
  };
  auto computes = [&](const char* name, double amount, const std::function<int()>& call) {
    print_speed(name, amount, time_of(b, call), products, "GFLOP/s");
  };
  {
    Shape shape{1 << 28};
    View x = b.random(DType::f32, shape), y = b.random(DType::f32, shape);
    View z = b.empty(DType::f32, shape), one = b.empty(DType::f32, {});
    double size = 4.0 * (1 << 28);
    moves("copy f32", 2 * size, [&] { return b.table.copy(b.stream, x, z); });
    moves("add f32", 3 * size, [&] { return b.table.binary(b.stream, Binary::add, x, y, z); });
    moves("gelu_tanh f32", 2 * size,
          [&] { return b.table.unary(b.stream, Unary::gelu_tanh, x, z); });
    moves("sum f32", size, [&] { return b.table.reduce(b.stream, Reduce::sum, x, 0, one); });
    b.clear();
  }
  {
    Shape shape{1 << 28};
    View x = b.random(DType::bf16, shape), y = b.empty(DType::bf16, shape);
    View wide = b.empty(DType::f32, shape), one = b.empty(DType::f32, {});
    double size = 2.0 * (1 << 28);
    moves("add bf16", 3 * size, [&] { return b.table.binary(b.stream, Binary::add, x, y, y); });
    moves("gelu_tanh bf16", 2 * size,
          [&] { return b.table.unary(b.stream, Unary::gelu_tanh, x, y); });
    moves("cast bf16 to f32", 3 * size, [&] { return b.table.copy(b.stream, x, wide); });
    moves("cast f32 to bf16", 3 * size, [&] { return b.table.copy(b.stream, wide, x); });
    moves("sum bf16", size, [&] { return b.table.reduce(b.stream, Reduce::sum, x, 0, one); });
    b.clear();
  }
  for (DType dtype : {DType::f32, DType::bf16}) {
    constexpr int64_t rows = 32768, columns = 4096;
    View x = b.random(dtype, {rows, columns}), y = b.empty(dtype, {rows, columns});
    View grad = b.random(dtype, {rows, columns}), dx = b.empty(dtype, {rows, columns});
    View weight = b.random(dtype, {columns}), bias = b.random(dtype, {columns});
    View dweight = b.empty(dtype, {columns}), dbias = b.empty(dtype, {columns});
    View mean = b.empty(DType::f32, {rows}), rstd = b.empty(DType::f32, {rows});
    double size = static_cast<double>(x.bytes());
    std::string type = dtype_name(dtype);
    moves(("layer_norm " + type).c_str(), 2 * size,
          [&] { return b.table.layer_norm(b.stream, x, &weight, &bias, 1e-5, y, mean, rstd); });
    moves(("layer_norm_backward " + type).c_str(), 3 * size, [&] {
      return b.table.layer_norm_backward(b.stream, x, &weight, mean, rstd, grad, dx, &dweight,
                                         &dbias, false);
    });
    moves(("softmax " + type).c_str(), 2 * size,
          [&] { return b.table.softmax(b.stream, false, x, y); });
    moves(("softmax_backward " + type).c_str(), 3 * size,
          [&] { return b.table.softmax_backward(b.stream, false, y, grad, dx); });
    moves(("rms_norm " + type).c_str(), 2 * size,
          [&] { return b.table.rms_norm(b.stream, x, &weight, 1e-5, y, rstd); });
    View by_columns = swap_dims(x, 0, 1), sums = b.empty(dtype, {columns});
    moves(("sum of columns " + type).c_str(), size,
          [&] { return b.table.reduce(b.stream, Reduce::sum, by_columns, 0, sums); });
    b.clear();
  }
  {
    constexpr int64_t rows = 8192, classes = 50257;
    View logits = b.random(DType::bf16, {rows, classes}),
         out = b.empty(DType::bf16, {rows, classes});
    View labels = b.empty(DType::i64, {rows}), loss = b.empty(DType::f32, {rows});
    View lse = b.empty(DType::f64, {rows}), grad = b.random(DType::f32, {rows});
    b.must_be(b.table.integers(b.stream, labels, 1, 0, 0, classes - 1));
    double size = static_cast<double>(logits.bytes());
    moves("cross_entropy bf16", size,
          [&] { return b.table.cross_entropy(b.stream, logits, labels, 0, -1, loss, lse); });
    moves("cross_entropy_backward bf16", 2 * size, [&] {
      return b.table.cross_entropy_backward(b.stream, logits, labels, 0, -1, lse, grad, out);
    });
    b.clear();
  }
  {
    constexpr int64_t count = 1 << 27;
    View weights = b.random(DType::f32, {count}), grad = b.random(DType::bf16, {count});
    View mean = b.random(DType::f32, {count}), square = b.empty(DType::f32, {count});
    View copy = b.empty(DType::bf16, {count});
    b.must_be(b.table.fill(b.stream, square, Number::of(1.0)));
    moves("adamw f32, bf16 gradient, copy", (6.0 * 4 + 2 * 2) * count,
          [&] { return b.table.adamw(b.stream, AdamW{}, weights, grad, 1, mean, square, &copy); });
    b.clear();
  }
  for (DType dtype : {DType::f32, DType::bf16}) {
    constexpr int64_t n = 4096;
    View x = b.random(dtype, {n, n}), y = b.random(dtype, {n, n}), z = b.empty(dtype, {n, n});
    View bias = b.random(dtype, {n});
    std::string type = dtype_name(dtype);
    computes(("matmul 4096 " + type).c_str(), 2.0 * n * n * n,
             [&] { return b.table.matmul(b.stream, x, y, 1, 0, nullptr, Unary::identity, z); });
    computes(("matmul 4096 bias gelu " + type).c_str(), 2.0 * n * n * n,
             [&] { return b.table.matmul(b.stream, x, y, 1, 0, &bias, Unary::gelu_tanh, z); });
    b.clear();
  }
  for (DType dtype : {DType::f16, DType::bf16})
    for (int64_t width : {64, 128, 256})
      for (bool causal : {false, true}) measure_attention(b, dtype, width, causal, products);
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t groups : {32, 8}) measure_decoding(b, dtype, groups, copied);
  measure_convolutions(b, products);
}

struct Options {
  bool with_speed = true;
  std::string only;            // a family; "": all
  int same_bits = 0;           // calls of each operation; 0: the other checks
  int64_t large_elements = 0;  // 0: the other checks
  bool is_small = false;       // for an emulated GPU
  int64_t products = 0;        // size; 0: the other checks
  int64_t of_a_kind = 0;       // checks of one operation, type and layout; 0: of all shapes
};

int run(const Options& options) {
  auto count = cuda::device_count();
  if (!count || *count == 0) {
    fmt::print("no GPU here: nothing was checked ({})\n",
               count ? "CUDA finds none" : count.error().message);
    return 0;
  }
  cuda::DeviceInfo info = must(cuda::describe(0));
  fmt::print("{} ({}), sm_{}{}, {} processors, {:.1f} of {:.1f} GB free\n", info.name, info.id,
             info.major, info.minor, info.processors, static_cast<double>(info.memory_free) / 1e9,
             static_cast<double>(info.memory_total) / 1e9);
  must(cuda::set_device(0));
  void* stream = must(cuda::new_stream());
  int misses = 0;
  if (options.same_bits > 0) {
    misses = check_same_bits(stream, options.same_bits, options.is_small);
  } else if (options.products > 0) {
    double rate = must(raw_product_rate(stream, options.products));
    fmt::print("{:.3g} GFLOP/s by direct calls of cuBLASLt\n", rate / 1e9);
  } else if (options.large_elements > 0) {
    misses = check_large(stream, options.large_elements);
  } else {
    misses = check_rows(stream, options.only, options.of_a_kind);
    if (options.only.empty() && options.of_a_kind == 0) misses |= check_kernels(options.with_speed);
    if (options.with_speed && options.only.empty()) measure(stream);
    if (below_floor > 0) fmt::print("MISS {} rows are slower than their floor\n", below_floor);
    misses += below_floor;
  }
  must(cuda::last_fault());
  must(cuda::free_stream(stream));
  return misses > 0 ? 1 : 0;
}

}  // namespace
}  // namespace flow::gpu

// gpu_check [--no-speed] [--only FAMILY]     all families, or one, against the CPU
// gpu_check --sanitizer [--only FAMILY]      one shape of each operation, type and layout, once
// gpu_check --products SIZE                  the rate of a bf16 product by cuBLASLt without flow
// gpu_check --same-bits TIMES [--small]      the same bits in each call
// gpu_check --large [--elements NUMBER]      more than 2^31 elements
int main(int count, char** words) {
  flow::gpu::Options options;
  for (int i = 1; i < count; i++) {
    std::string word = words[i];
    bool has_value = i + 1 < count;
    if (word == "--no-speed") {
      options.with_speed = false;
    } else if (word == "--sanitizer") {
      options.with_speed = false;
      options.of_a_kind = 1;
    } else if (word == "--small") {
      options.is_small = true;
    } else if (word == "--large") {
      options.large_elements = flow::gpu::kLargeElements;
    } else if (word == "--only" && has_value) {
      options.only = words[++i];
    } else if (word == "--products" && has_value) {
      options.products = std::atoll(words[++i]);
    } else if (word == "--same-bits" && has_value) {
      options.same_bits = std::atoi(words[++i]);
    } else if (word == "--elements" && has_value) {
      options.large_elements =
          std::atoll(words[++i]) / flow::gpu::kLargeColumns * flow::gpu::kLargeColumns;
    } else {
      fmt::print(
          "usage: gpu_check [--no-speed | --sanitizer] [--only FAMILY] | --products SIZE |\n"
          "       --same-bits TIMES [--small] | --large [--elements NUMBER]\n");
      return 2;
    }
  }
  return flow::gpu::run(options);
}
