// The one table of operations. A device implements each function with the caller's stream and views
// of memory of that device. Rules for every function:
//
// - Shapes fit: the caller broadcast the operands (stride 0) to the shape in the comment, and `out`
//   exists with uninitialized elements. Strides are arbitrary unless the comment says "dense"
//   (row-major without gaps) or "dense rows" (the last dimension without gaps). An operand of an
//   element-wise function may be `out` itself, with the same strides; otherwise nothing overlaps.
// - "floats" are f32, f64, f16 and bf16; all operands of a call have one type unless the comment
//   says otherwise. f16 and bf16 are computed in f32 and rounded once, f32 sums are at least as
//   exact as a blocked f32 sum.
// - Sizes may be 0, also of reduced dimensions.
// - A launcher allocates nothing: it takes memory from `stream.scratch`. If that is too small, it
//   does nothing and returns kNeedsScratch, with `stream.scratch.needed` bytes; the caller enlarges
//   the scratch and calls again.
// - It returns kDone, kNeedsScratch, kUnsupported (nothing was done; the caller reports it), or the
//   device library's error, which `error_text` converts to text. On a GPU it returns before the
//   work is done.
// - The same operands produce the same bits in each call, on one device model, for one number of
//   threads.
// - NaN propagates: into sums, products, maximum, minimum, max, min, relu and clamp. For functions
//   that count or select, the comment says what NaN does.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/shared/fused_elementwise.hpp"
#include "kernels/shared/hd.hpp"
#include "kernels/shared/ops.hpp"
#include "kernels/shared/view.hpp"

namespace flow::kernels {

constexpr int kDone = 0, kNeedsScratch = -1, kUnsupported = -2;

/// Memory that launchers use until they return (stream-ordered). Each allocation is aligned to 256
/// bytes.
struct Scratch {
  char* data = nullptr;
  size_t bytes = 0;
  size_t used = 0;    // set to 0 by the caller before each call
  size_t needed = 0;  // of the last call

  /// Memory for `count` of T, or null if it does not fit: then request everything that the call
  /// needs, and return kNeedsScratch.
  template <typename T>
  T* take(int64_t count) {
    size_t size = (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
    T* piece = used + size <= bytes ? reinterpret_cast<T*>(data + used) : nullptr;
    used += size;
    needed = used;
    return piece;
  }
};

/// How exactly a GPU multiplies f32: PyTorch's names.
enum class MatmulPrecision : uint8_t {
  highest,  // f32
  high,     // TF32: 10 bits of mantissa
  medium,   // bf16: 7 bits; the sums are f32
};

/// Runs the operations of one slot in order.
struct Stream {
  int threads = 1;                                       // of the CPU, per operation
  void* native = nullptr;                                // a cudaStream_t
  MatmulPrecision precision = MatmulPrecision::highest;  // of f32 products and convolutions
  Scratch scratch;
  /// On the device: a kernel with an index out of range stores 1 + its position there; null if the
  /// caller has checked the indices. It is read when the host next waits.
  int64_t* fault = nullptr;
};

/// A number that is exact as an integer or as a double.
struct Number {
  bool is_integer = false;
  int64_t integer = 0;
  double real = 0;  // always set

  static Number of(int64_t value) { return {true, value, static_cast<double>(value)}; }
  static Number of(double value) { return {false, 0, value}; }
};

/// The seed of random numbers.
struct Seed {
  uint64_t value = 0;
  /// Unless null, in the GPU's memory, and read there instead: a launch that is repeated by a graph
  /// has another seed each time.
  const uint64_t* word = nullptr;

  Seed() = default;
  Seed(uint64_t number, const uint64_t* at = nullptr) : value(number), word(at) {}
  FLOW_HD uint64_t number() const { return word ? *word : value; }
};

struct Conv2d {  // rows first
  int64_t stride[2] = {1, 1}, padding[2] = {0, 0}, dilation[2] = {1, 1};
  int64_t groups = 1;
};
struct Pool2d {
  int64_t window[2] = {1, 1}, stride[2] = {1, 1}, padding[2] = {0, 0};
};
struct AdamW {  // Loshchilov and Hutter, "Decoupled weight decay regularization"
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  int64_t step = 1;  // the first step is 1
};
/// One tensor of a step of several.
struct AdamWTensor {
  View weights, grad, mean, square;
  View copy;         // its data is null if there is none
  int64_t step = 1;  // instead of AdamW's
  /// Unless null, its AdamWRates in the GPU's memory, which are read there instead of computed from
  /// lr and the step.
  const double* rates = nullptr;
};
struct Sgd {  // as torch.optim.SGD
  double lr = 1e-2, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
  bool first = false;  // the momentum starts as the gradient
};
struct Attention {
  bool causal = true;  // query i sees keys up to i + (keys - queries)
  double scale = 1;    // of the products of queries and keys
};
/// What the product of a layer, or of its gradients, computes in addition to its sums. The views
/// are null where they are not wanted.
struct ProductEpilogue {
  const View* bias = nullptr;  // [n], of a's type: is added
  /// The result is its value: identity, relu, gelu or gelu_tanh. If `is_gradient`, the result is
  /// instead multiplied by its derivative at `before`.
  Unary activation = Unary::identity;
  bool is_gradient = false;
  /// [m, n] of a's type, dense rows: the operand of the activation, rounded. It is stored, or read
  /// if `is_gradient`.
  const View* before = nullptr;
  const View* column_sums = nullptr;  // [n], of c's type, dense: the sums of c's columns
  const View* row_sums = nullptr;     // [m], of c's type, dense: the sums of a's rows
};
struct Gbm {  // geometric Brownian motion, S' = S exp((rate - volatility²/2) dt + volatility √dt Z)
  double start = 100, rate = 0.05, volatility = 0.2, years = 1;
  int64_t steps = 1;  // of equal length
  uint64_t seed = 0;
  int64_t first_path = 0;  // paths are numbered: any split of them computes the same prices
};

struct Kernels {
  const char* name;  // "cpu", "cuda"
  const char* (*error_text)(int code);

  // ---- elements
  /// to = from, cast as `convert` does. Any types.
  int (*copy)(Stream&, const View& from, const View& to);
  /// Any type, cast as `convert` does.
  int (*fill)(Stream&, const View& out, Number value);
  /// out = op(in). Floats; neg, abs, sign, square and relu also i64, i32, u8 (which wrap).
  int (*unary)(Stream&, Unary, const View& in, const View& out);
  /// out = grad * op'(in), where `y` = op(in). Floats.
  int (*unary_backward)(Stream&, Unary, const View& in, const View& y, const View& grad,
                        const View& out);
  /// out = a op b. Floats, i64, i32, u8 (which wrap; div is of floats only, floor_div and mod of an
  /// integer by 0 are 0, and so is a power that would be a fraction). If out is f32, one of a and b
  /// may be f16 or bf16.
  int (*binary)(Stream&, Binary, const View& a, const View& b, const View& out);
  /// out = a op b, or b op a if `reversed`. `b` is cast to a's compute type.
  int (*binary_number)(Stream&, Binary, const View& a, Number b, bool reversed, const View& out);
  /// out (bool) = a op b. Any type except bool. NaN is unequal and unordered.
  int (*compare)(Stream&, Compare, const View& a, const View& b, const View& out);
  /// For floats `b` is rounded to their type first; integers are compared with it exactly.
  int (*compare_number)(Stream&, Compare, const View& a, Number b, const View& out);
  /// out = condition (bool) ? a : b. Any type.
  int (*where)(Stream&, const View& condition, const View& a, const View& b, const View& out);
  /// out = min(max(in, low), high). Floats, i64, i32, u8.
  int (*clamp)(Stream&, const View& in, Number low, Number high, const View& out);
  /// out = a + factor * b * c, and out = a + factor * b / c. Floats.
  int (*add_product)(Stream&, const View& a, const View& b, const View& c, double factor,
                     const View& out);
  int (*add_quotient)(Stream&, const View& a, const View& b, const View& c, double factor,
                      const View& out);
  /// out = a + (b - a) * weight. Floats.
  int (*lerp)(Stream&, const View& a, const View& b, double weight, const View& out);
  /// out = keep(i) ? in / (1 - p) : 0, where keep uses uniform number `first` + i of the seed, and
  /// i is the row-major position. The same call on a gradient is the backward. Floats.
  int (*dropout)(Stream&, const View& in, double p, Seed seed, uint64_t first, const View& out);
  /// out = the result of the chain's last step; f16 and bf16 are rounded once, at the end. Floats.
  int (*fused_elementwise)(Stream&, const FusedElementwise&, const View* inputs, const View& out);

  // ---- many to one
  /// `in` has the dimensions of `out`, then the reduced ones. Floats: sum, mean, product, norm
  /// (Euclidean), var (divided by n - correction), to the same type or f64; sum and product also of
  /// i64, i32, u8 and bool into i64; max and min of any type except bool, of at least one element;
  /// any and all of bool into bool. Dense or strided `in`.
  int (*reduce)(Stream&, Reduce, const View& in, double correction, const View& out);
  /// The extreme along the last dimension, which is not empty, and its first position (i64, counted
  /// from `base`). Any type except bool. NaN is extreme.
  int (*extreme)(Stream&, bool largest, const View& in, int64_t base, const View& value,
                 const View& index);
  /// Running sums along the last dimension. Floats; i64, i32.
  int (*cumsum)(Stream&, const View& in, const View& out);

  // ---- rows: the last dimension. Floats, dense rows.
  /// out = softmax(in), or its logarithm.
  int (*softmax)(Stream&, bool logarithm, const View& in, const View& out);
  /// `y` is the result of softmax.
  int (*softmax_backward)(Stream&, bool logarithm, const View& y, const View& grad,
                          const View& out);
  /// loss[n] (f32, or f64 for f64) = -log softmax(logits[n, classes])[label]; `lse`[n] (f64) stores
  /// log(sum(exp)), for which f32 has too few digits if all logits are large. labels[n] are i64
  /// counted from `base`; a label equal to `ignore` has a loss of 0.
  int (*cross_entropy)(Stream&, const View& logits, const View& labels, int64_t base,
                       int64_t ignore, const View& loss, const View& lse);
  /// out = (softmax(logits) - onehot(label)) * grad[n]; grad has the type of the loss. `out` may be
  /// `logits`.
  int (*cross_entropy_backward)(Stream&, const View& logits, const View& labels, int64_t base,
                                int64_t ignore, const View& lse, const View& grad, const View& out);
  /// y[n, c] = (x - mean) * rstd * weight + bias, where weight and bias [c] may be null; mean and
  /// rstd [n] (f32, or f64 for f64; dense) are stored for the backward. weight, bias: x's type or
  /// f32. If x is f32, y and its gradient may be f16 or bf16, here and in rms_norm.
  int (*layer_norm)(Stream&, const View& x, const View* weight, const View* bias, double eps,
                    const View& y, const View& mean, const View& rstd);
  /// dx and, unless null, dweight and dbias. The latter are set; dx is set, or added to if `adds`.
  int (*layer_norm_backward)(Stream&, const View& x, const View* weight, const View& mean,
                             const View& rstd, const View& grad, const View& dx,
                             const View* dweight, const View* dbias, bool adds);
  /// y = x * rstd * weight with rstd = 1 / sqrt(mean(x²) + eps).
  int (*rms_norm)(Stream&, const View& x, const View* weight, double eps, const View& y,
                  const View& rstd);
  int (*rms_norm_backward)(Stream&, const View& x, const View* weight, const View& rstd,
                           const View& grad, const View& dx, const View* dweight, bool adds);

  // ---- products
  /// c[…, m, n] = alpha * a[…, m, k] b[…, k, n] + beta * c, then + bias[n] unless null, then
  /// `activation` (identity, relu, gelu or gelu_tanh). Floats; leading dimensions are batches,
  /// broadcast. c has dense rows. a and b: any strides.
  int (*matmul)(Stream&, const View& a, const View& b, double alpha, double beta, const View* bias,
                Unary activation, const View& c);
  /// c[m, n] = a[m, k] b[k, n] and its epilogue. Floats; c has dense rows and a's type, or is f32
  /// for f16 and bf16. a and b: any strides. On a GPU, bf16 and f16 may be rounded before and after
  /// each part of the epilogue.
  int (*product)(Stream&, const View& a, const View& b, const ProductEpilogue&, const View& c);

  // ---- by index (i64 or i32, counted from `base`)
  /// out[…, :] = table[index[…], :]. Any type; table [rows, width].
  int (*gather_rows)(Stream&, const View& table, const View& index, int64_t base, const View& out);
  /// out[index[…], :] += grad[…, :], in the order of the index. Floats; all values added to an
  /// element of f16 or bf16 are summed in f32 and rounded once, here and in scatter_add_last.
  int (*scatter_add_rows)(Stream&, const View& grad, const View& index, int64_t base,
                          const View& out);
  /// out[…, j] = in[…, index[…, j]]. Any type. index has out's shape.
  int (*gather_last)(Stream&, const View& in, const View& index, int64_t base, const View& out);
  /// out[…, index[…, j]] += grad[…, j]. Floats.
  int (*scatter_add_last)(Stream&, const View& grad, const View& index, int64_t base,
                          const View& out);

  // ---- transformers. q [b, h, t, d], k and v [b, g, s, d], h a multiple of g (grouped heads);
  //      floats, dense last dimension.
  /// out = softmax(scale * q kᵀ) v row by row; lse [b, h, t] (f64, dense) is stored.
  /// No memory of size t * s. A row without keys is 0.
  int (*attention)(Stream&, Attention, const View& q, const View& k, const View& v, const View& out,
                   const View& lse);
  int (*attention_backward)(Stream&, Attention, const View& q, const View& k, const View& v,
                            const View& out, const View& lse, const View& grad, const View& dq,
                            const View& dk, const View& dv);
  /// Rotary positions (Su et al., "RoFormer") of x [b, h, t, d], d even: rotates pairs (i, i + d/2)
  /// by (first + t) * theta^(-2i/d), backwards if `inverse` (the gradient).
  int (*rotary)(Stream&, const View& x, int64_t first, double theta, bool inverse, const View& out);

  // ---- pictures: x [n, c, h, w], dense floats
  /// w [outputs, c / groups, kh, kw], bias [outputs] or null.
  int (*conv2d)(Stream&, const Conv2d&, const View& x, const View& w, const View* bias,
                const View& out);
  int (*conv2d_backward_input)(Stream&, const Conv2d&, const View& grad, const View& w,
                               const View& dx);
  int (*conv2d_backward_weight)(Stream&, const Conv2d&, const View& grad, const View& x,
                                const View& dw);
  /// index (i64, dense): the position in the h * w plane, from 0, of the selected element; padding
  /// is never selected.
  int (*max_pool2d)(Stream&, const Pool2d&, const View& x, const View& out, const View& index);
  int (*max_pool2d_backward)(Stream&, const View& grad, const View& index, const View& dx);
  /// Padding counts as zeros, as in PyTorch.
  int (*avg_pool2d)(Stream&, const Pool2d&, const View& x, const View& out);
  int (*avg_pool2d_backward)(Stream&, const Pool2d&, const View& grad, const View& dx);
  /// in [n, c, h, w] to out [n, c, h', w']: bilinear with half-pixel centers (PyTorch's
  /// align_corners = false, no antialiasing), or the nearest. u8 or floats; u8 is rounded.
  int (*resize)(Stream&, bool bilinear, const View& in, const View& out);
  int (*resize_backward)(Stream&, bool bilinear, const View& grad, const View& out);
  /// out [n, c, h, w] floats = (in [n, h, w, c] u8 / 255 - mean[c]) / deviation[c]; f32 mean,
  /// deviation.
  int (*normalize)(Stream&, const View& in, const View& mean, const View& deviation,
                   const View& out);

  // ---- optimizers, in place, dense
  // A view with gaps is not supported: the function does nothing and returns kUnsupported.
  /// weights f32 (or f64, then all); grad f32, bf16, f16 times `grad_scale`; `copy`, unless null
  /// (bf16 or f16), is set to the rounded weights.
  int (*adamw)(Stream&, const AdamW&, const View& weights, const View& grad, double grad_scale,
               const View& mean, const View& square, const View* copy);
  /// The same for several tensors, in as few launches as possible; `factor`, unless null, is an f64
  /// by which the gradients are multiplied too.
  int (*adamw_all)(Stream&, const AdamW&, const AdamWTensor* tensors, int64_t count,
                   double grad_scale, const View* factor);
  /// `momentum` is null if options.momentum is 0.
  int (*sgd)(Stream&, const Sgd&, const View& weights, const View& grad, double grad_scale,
             const View* momentum, const View* copy);
  /// out (f64, one element) += the sum of squares of the floats in `in`, with any strides.
  int (*add_sum_of_squares)(Stream&, const View& in, const View& out);
  /// out (f64, two elements) = the Euclidean norm of all elements of the dense tensors, and the
  /// factor that reduces it to `limit`: limit / (norm + 1e-6), or 1 if that is not below 1. Floats
  /// of any types.
  int (*norm_of_all)(Stream&, const View* tensors, int64_t count, double limit, const View& out);
  /// Multiplies the dense tensors by `factor`, an f64. If it is 1, they are not touched.
  int (*scale_all)(Stream&, const View* tensors, int64_t count, const View& factor);

  // ---- choosing
  /// The k largest of each row of in [n, c], largest first, equal ones by position; NaN is largest.
  /// values and index (i64, from `base`) [n, k], dense. Any type except bool.
  int (*top_k)(Stream&, const View& in, int64_t base, const View& values, const View& index);
  /// index [n] (i64, from `base`): drawn from softmax(logits[n, c] / temperature) by uniform number
  /// `first` + row of the seed; temperature 0 selects the first largest. Floats, dense rows.
  int (*sample)(Stream&, const View& logits, double temperature, Seed seed, uint64_t first,
                int64_t base, const View& index);
  /// counts[bins] (i64, dense, set) of the values in [low, high], the last bin closed; others and
  /// NaN are not counted. Floats, i64, i32, u8.
  int (*histogram)(Stream&, const View& in, double low, double high, const View& counts);

  // ---- random numbers by position: Philox 4x32-10. Dense.
  /// Uniform in [low, high), numbers first, first + 1, … of the seed. Floats. The same bits
  /// everywhere.
  int (*uniform)(Stream&, const View& out, Seed seed, uint64_t first, double low, double high);
  /// Box-Muller in double, rounded. Floats. Within 2 ulp everywhere.
  int (*normal)(Stream&, const View& out, Seed seed, uint64_t first, double mean, double deviation);
  /// Evenly in [low, high] (inclusive). i64, i32, u8. The same bits everywhere.
  int (*integers)(Stream&, const View& out, Seed seed, uint64_t first, int64_t low, int64_t high);
  /// 1 with probability p, else 0. Any type.
  int (*bernoulli)(Stream&, const View& out, Seed seed, uint64_t first, double p);

  // ---- finance
  /// out[paths, steps + 1] (f32 or f64, dense): the paths, the start included.
  int (*gbm_paths)(Stream&, const Gbm&, const View& out);
  /// out[paths] (f32 or f64, dense): the end of each path only.
  int (*gbm_ends)(Stream&, const Gbm&, const View& out);

  // ---- two at once
  /// sum = x + term as of binary, and y = layer_norm(sum), or rms_norm(sum) if `mean` is null,
  /// which has no bias. `term` has x's type or, if x is f32, f16 or bf16; sum has x's type, dense
  /// rows.
  int (*add_norm)(Stream&, const View& x, const View& term, const View* weight, const View* bias,
                  double eps, const View& sum, const View& y, const View* mean, const View& rstd);
};

/// The CPU's implementation: the reference for all others.
const Kernels& cpu_kernels();
/// Null if this build has no CUDA.
const Kernels* cuda_kernels();

}  // namespace flow::kernels
