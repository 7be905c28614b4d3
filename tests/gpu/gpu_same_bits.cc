#include "tests/gpu/gpu_same_bits.hpp"

#include <cmath>
#include <optional>
#include <string>

#include "kernels/cuda/cudnn.hpp"
#include "tests/gpu/gpu_bench.hpp"

namespace flow::gpu {
namespace {

using namespace kernels;

/// FNV-1a of 64 bits.
uint64_t hash_of(const std::vector<char>& bytes, uint64_t hash) {
  for (char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3ULL;
  return hash;
}

class SameBits {
 public:
  SameBits(void* native, int times, bool is_small)
      : native_(native),
        times_(times),
        is_small_(is_small),
        other_(must(cuda::new_stream())),
        bench_(native, scratch_bytes()) {}
  ~SameBits() { must(cuda::free_stream(other_)); }

  int check() {
    norms();
    for (bool by_cudnn : {true, false}) attention(by_cudnn);
    decoding();
    cross_entropy();
    indices();
    products();
    sums();
    convolution();
    return wrong_;
  }

 private:
  using Call = std::function<int(Stream&)>;

  size_t scratch_bytes() const { return size_t{is_small_ ? 16U : 512U} << 20; }
  int64_t size(int64_t full, int64_t small) const { return is_small_ ? small : full; }

  /// Work on the other stream beside the calls, and memory that moves what is allocated later.
  void disturb(int round, Bench& other) {
    int64_t count = size(1 << 24, 1 << 8) + 64 * (round % 7);
    View noise = other.random(DType::f32, Shape{count});
    other.must_be(other.table.unary(other.stream, Unary::gelu_tanh, noise, noise));
  }

  void same(const std::string& name, const std::vector<View>& results, const Call& call) {
    std::optional<uint64_t> first;
    bool is_same = true;
    Bench other(other_, 1 << 20);
    for (int round = 0; round < times_; round++) {
      disturb(round, other);
      Room scratch(scratch_bytes(), native_);
      must(cuda::set_bytes(scratch.data(), round % 2 == 0 ? 0xff : 0, scratch_bytes(), native_));
      Stream stream = bench_.stream;
      stream.scratch = {scratch.data(), scratch_bytes(), 0, 0};
      bench_.must_be(call(stream));
      uint64_t hash = 0xcbf29ce484222325ULL;
      for (const View& each : results) hash = hash_of(bench_.bytes_of(each), hash);
      is_same &= !first || *first == hash;
      first = hash;
      if (round % 8 == 7) other.clear();
    }
    other.clear();
    fmt::print("bits {:<36} {:016x} {}\n", name, first.value_or(0), is_same ? "ok" : "MISS");
    wrong_ += is_same ? 0 : 1;
    bench_.clear();
  }

  void norms() {
    for (DType dtype : {DType::f32, DType::bf16}) {
      Shape shape{size(16384, 40), 768};
      View x = bench_.random(dtype, shape), grad = bench_.random(dtype, shape);
      View dx = bench_.empty(dtype, shape), weight = bench_.random(dtype, Shape{768});
      View dweight = bench_.empty(dtype, Shape{768}), dbias = bench_.empty(dtype, Shape{768});
      View mean = bench_.empty(DType::f32, Shape{shape[0]}),
           rstd = bench_.empty(DType::f32, Shape{shape[0]});
      bench_.must_be(
          bench_.table.layer_norm(bench_.stream, x, &weight, nullptr, 1e-5, dx, mean, rstd));
      same(fmt::format("layer_norm_backward {}", dtype_name(dtype)), {dx, dweight, dbias},
           [&](Stream& stream) {
             return bench_.table.layer_norm_backward(stream, x, &weight, mean, rstd, grad, dx,
                                                     &dweight, &dbias, false);
           });
    }
  }

  // By cuDNN, which checks its first results, and by flow; twice by flow if there is no cuDNN.
  void attention(bool by_cudnn) {
    cuda::use_cudnn(by_cudnn);
    int64_t before = cuda::attention_use().done;
    Shape shape{size(4, 1), size(16, 2), size(1024, 64), 64};
    View q = bench_.random(DType::bf16, shape), k = bench_.random(DType::bf16, shape);
    View v = bench_.random(DType::bf16, shape), grad = bench_.random(DType::bf16, shape);
    View out = bench_.empty(DType::bf16, shape), dq = bench_.empty(DType::bf16, shape);
    View dk = bench_.empty(DType::bf16, shape), dv = bench_.empty(DType::bf16, shape);
    View lse = bench_.empty(DType::f64, Shape{shape[0], shape[1], shape[2]});
    Attention options{true, 0.125};
    bench_.must_be(bench_.table.attention(bench_.stream, options, q, k, v, out, lse));
    const char* maker = cuda::attention_use().done > before ? "cuDNN" : "flow";
    same(fmt::format("attention bf16 {}", maker), {out, lse, dq, dk, dv}, [&](Stream& stream) {
      int code = bench_.table.attention(stream, options, q, k, v, out, lse);
      if (code != kDone) return code;
      stream.scratch.used = 0;
      return bench_.table.attention_backward(stream, options, q, k, v, out, lse, grad, dq, dk, dv);
    });
    cuda::use_cudnn(true);
  }

  void decoding() {
    Shape shape{size(4, 1), size(16, 2), size(8192, 48), 64};
    View k = bench_.random(DType::bf16, shape), v = bench_.random(DType::bf16, shape);
    shape[2] = 1;
    View q = bench_.random(DType::bf16, shape), out = bench_.empty(DType::bf16, shape);
    View lse = bench_.empty(DType::f64, Shape{shape[0], shape[1], 1});
    same("attention of one query bf16", {out, lse}, [&](Stream& stream) {
      return bench_.table.attention(stream, Attention{true, 0.125}, q, k, v, out, lse);
    });
  }

  void cross_entropy() {
    int64_t rows = size(1024, 6), classes = size(50257, 1001);
    View logits = bench_.random(DType::bf16, Shape{rows, classes});
    View labels = bench_.empty(DType::i64, Shape{rows}),
         lse = bench_.empty(DType::f64, Shape{rows});
    View loss = bench_.empty(DType::f32, Shape{rows});
    View grad = bench_.random(DType::f32, Shape{rows});
    View out = bench_.empty(DType::bf16, Shape{rows, classes});
    bench_.must_be(bench_.table.integers(bench_.stream, labels, 1, 0, 0, classes - 1));
    same("cross_entropy bf16", {loss, lse, out}, [&](Stream& stream) {
      int code = bench_.table.cross_entropy(stream, logits, labels, 0, -1, loss, lse);
      if (code != kDone) return code;
      stream.scratch.used = 0;
      return bench_.table.cross_entropy_backward(stream, logits, labels, 0, -1, lse, grad, out);
    });
  }

  /// The gradient of an embedding, of which a few rows are used by most tokens.
  void indices() {
    int64_t tokens = size(32768, 300), rows = size(5000, 40);
    for (DType dtype : {DType::f32, DType::bf16}) {
      View grad = bench_.random(dtype, Shape{tokens, 768});
      View table = bench_.empty(dtype, Shape{rows, 768});
      View index = bench_.empty(DType::i64, Shape{tokens});
      bench_.must_be(bench_.table.integers(bench_.stream, index, 3, 0, 0, rows - 1));
      bench_.must_be(bench_.table.fill(bench_.stream, narrow(index, 0, 0, tokens / 3),
                                       Number::of(int64_t{1})));
      same(fmt::format("scatter_add_rows {}", dtype_name(dtype)), {table}, [&](Stream& stream) {
        int code = bench_.table.fill(stream, table, Number::of(0.0));
        if (code != kDone) return code;
        stream.scratch.used = 0;
        return bench_.table.scatter_add_rows(stream, grad, index, 0, table);
      });
    }
  }

  /// The last two have few results and long sums, which libraries split.
  void products() {
    struct Sizes {
      int64_t m, n, k;
    };
    for (DType dtype : {DType::f32, DType::bf16})
      for (Sizes each : {Sizes{size(4096, 64), size(4096, 72), size(4096, 40)},
                         Sizes{size(16384, 100), size(768, 24), size(3072, 36)},
                         Sizes{size(128, 16), size(128, 8), size(65536, 500)},
                         Sizes{size(768, 17), size(50257, 33), size(1000, 51)}}) {
        View a = bench_.random(dtype, Shape{each.m, each.k});
        View b = bench_.random(dtype, Shape{each.k, each.n});
        View c = bench_.empty(dtype, Shape{each.m, each.n});
        same(fmt::format("matmul {} {}x{}x{}", dtype_name(dtype), each.m, each.n, each.k), {c},
             [&](Stream& stream) {
               return bench_.table.matmul(stream, a, b, 1, 0, nullptr, Unary::identity, c);
             });
      }
  }

  void sums() {
    for (DType dtype : {DType::f32, DType::bf16}) {
      View x = bench_.random(dtype, Shape{size(16384, 50), size(3072, 70)});
      View all = bench_.empty(dtype, Shape{}), columns = bench_.empty(dtype, Shape{x.shape[1]});
      same(fmt::format("sum {}", dtype_name(dtype)), {all, columns}, [&](Stream& stream) {
        int code = bench_.table.reduce(stream, Reduce::sum, dense(dtype, Shape{x.count()}, x.data),
                                       0, all);
        if (code != kDone) return code;
        stream.scratch.used = 0;
        return bench_.table.reduce(stream, Reduce::sum, swap_dims(x, 0, 1), 0, columns);
      });
    }
  }

  void convolution() {
    Conv2d options;
    options.padding[0] = options.padding[1] = 1;
    for (DType dtype : {DType::f32, DType::bf16}) {
      int64_t channels = size(64, 3);
      View x = bench_.random(dtype, Shape{size(32, 2), channels, size(56, 7), size(56, 7)});
      View w = bench_.random(dtype, Shape{channels, channels, 3, 3});
      View out = bench_.empty(dtype, x.shape), dw = bench_.empty(dtype, w.shape);
      same(fmt::format("conv2d {}", dtype_name(dtype)), {out, dw}, [&](Stream& stream) {
        int code = bench_.table.conv2d(stream, options, x, w, nullptr, out);
        if (code != kDone) return code;
        stream.scratch.used = 0;
        return bench_.table.conv2d_backward_weight(stream, options, out, x, dw);
      });
    }
  }

  void* native_;
  const int times_;
  const bool is_small_;
  void* other_;
  Bench bench_;
  int wrong_ = 0;
};

}  // namespace

int check_same_bits(void* stream, int times, bool is_small) {
  return SameBits(stream, times, is_small).check();
}

}  // namespace flow::gpu
