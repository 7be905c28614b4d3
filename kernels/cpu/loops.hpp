// The inner loops of the CPU's operations: contiguous runs of elements in the compute type.
// kernels/cpu/elementwise.hpp converts other types and strides. They are compiled for each level of
// the instruction set (kernels/cpu/loops/isa.hpp).
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/shared/ops.hpp"
#include "kernels/shared/philox.hpp"

namespace flow::cpu {

/// The types of arithmetic.
enum ArithmeticType : uint8_t { kF32, kF64, kI64, kI32, kU8 };
constexpr int kKinds = 5, kFloatKinds = 2;
/// Element sizes for moves, regardless of type: 1, 2, 4 and 8 bytes.
constexpr int kSizes = 4;

/// The constants of one AdamW step. `grad_scale` multiplies the gradient.
struct AdamWStep {
  double beta1, beta2, step_size, root_correction, eps, decay, grad_scale;
};
struct SgdStep {
  double lr, momentum, gain, weight_decay, grad_scale;  // gain: 1 - dampening
  bool nesterov, first;
};

struct Loops {
  const char* level;  // "base", "v3", "v4"

  // ---- moves, by size; strides are in elements
  void (*gather[kSizes])(const void* from, int64_t stride, void* to, int64_t count);
  void (*scatter[kSizes])(const void* from, void* to, int64_t stride, int64_t count);
  void (*fill[kSizes])(const void* value, void* to, int64_t count);
  /// to[column, row] = from[row, column]; rows and columns are `from_stride` and `to_stride`
  /// elements apart.
  void (*transpose[kSizes])(const void* from, int64_t from_stride, void* to, int64_t to_stride,
                            int64_t rows, int64_t columns);
  /// Non-temporal stores; `to` is aligned to 64 bytes.
  void (*stream)(const void* from, void* to, size_t bytes);
  void (*widen_f16)(const uint16_t* from, float* to, int64_t count);
  void (*widen_bf16)(const uint16_t* from, float* to, int64_t count);
  void (*round_f16)(const float* from, uint16_t* to, int64_t count);
  void (*round_bf16)(const float* from, uint16_t* to, int64_t count);
  /// From a kind to a kind, or (the last) to 0 and 1.
  void (*convert[kKinds][kKinds + 1])(const void* from, void* to, int64_t count);

  // ---- elements
  void (*unary[kernels::kUnaryCount][kKinds])(const void* in, void* out, int64_t count);
  void (*unary_backward[kernels::kUnaryCount][kFloatKinds])(const void* in, const void* y,
                                                            const void* grad, void* out,
                                                            int64_t count);
  void (*binary[kernels::kBinaryCount][kKinds])(const void* a, const void* b, void* out,
                                                int64_t count);
  void (*compare[kernels::kCompareCount][kKinds])(const void* a, const void* b, uint8_t* out,
                                                  int64_t count);
  void (*where[kSizes])(const uint8_t* condition, const void* a, const void* b, void* out,
                        int64_t count);
  void (*clamp[kKinds])(const void* in, const void* low, const void* high, void* out,
                        int64_t count);
  void (*add_product[kFloatKinds])(const void* a, const void* b, const void* c, double factor,
                                   void* out, int64_t count);
  void (*add_quotient[kFloatKinds])(const void* a, const void* b, const void* c, double factor,
                                    void* out, int64_t count);
  void (*lerp[kFloatKinds])(const void* a, const void* b, double weight, void* out, int64_t count);
  /// 0 if uniform number first + i of the seed is less than p; otherwise in * scale.
  void (*dropout[kFloatKinds])(const void* in, double p, double scale, uint64_t seed,
                               uint64_t first, void* out, int64_t count);

  // ---- one number of a run
  double (*sum[kFloatKinds])(const void* in, int64_t count);
  int64_t (*sum_integers[kKinds])(const void* in, int64_t count);
  double (*sum_of_squares[kFloatKinds])(const void* in, double mean, int64_t count);
  double (*product[kFloatKinds])(const void* in, int64_t count);
  double (*dot[kFloatKinds])(const void* a, const void* b, int64_t count);
  /// Of at least one element, into *out.
  void (*most[2][kKinds])(const void* in, int64_t count, void* out);  // [0] least, [1] largest
  int64_t (*find[kKinds])(const void* in, int64_t count, const void* value);  // count if not found
  // ---- one number of each column, a row added at a time
  void (*add_sums[kFloatKinds])(const void* row, double* sums, int64_t count);
  void (*add_sums_of_squares[kFloatKinds])(const void* row, const double* means, double* sums,
                                           int64_t count);
  void (*add_most[2][kKinds])(const void* row, void* most, int64_t count);

  // ---- rows
  /// Sum of exp(in - shift); each term is stored in `out` unless that is null.
  double (*sum_exp[kFloatKinds])(const void* in, double shift, void* out, int64_t count);
  /// out = exp(in - shift) * factor.
  void (*exp_scaled[kFloatKinds])(const void* in, double shift, double factor, void* out,
                                  int64_t count);
  /// out = in * factor + more.
  void (*scale[kFloatKinds])(const void* in, double factor, double more, void* out, int64_t count);
  /// out = y * (grad - sum), and out = grad - exp(y) * sum.
  void (*softmax_backward[2][kFloatKinds])(const void* y, const void* grad, double sum, void* out,
                                           int64_t count);
  /// y = (x - mean) * rstd * weight + bias; either may be null.
  void (*normalize[kFloatKinds])(const void* x, double mean, double rstd, const void* weight,
                                 const void* bias, void* y, int64_t count);
  /// Of g = grad * weight and h = (x - mean) * rstd: sums[0] += g, sums[1] += g * h.
  void (*normalize_sums[kFloatKinds])(const void* x, double mean, double rstd, const void* weight,
                                      const void* grad, double* sums, int64_t count);
  /// dx = (g - first - h * second) * rstd; dweight += grad * h and dbias += grad unless null.
  void (*normalize_backward[kFloatKinds])(const void* x, double mean, double rstd,
                                          const void* weight, const void* grad, double first,
                                          double second, void* dx, void* dweight, void* dbias,
                                          int64_t count);
  /// Rotates pairs (a, b) by angles: a' = a c - b s, b' = b c + a s.
  void (*rotate[kFloatKinds])(const void* a, const void* b, const void* cosine, const void* sine,
                              void* a_out, void* b_out, int64_t count);

  // ---- products: c[m, n] = a[m, k] b[k, n] for a few rows, all dense except for the row strides
  void (*product_small[kFloatKinds])(const void* a, int64_t a_row, int64_t a_column, const void* b,
                                     int64_t b_row, int64_t b_column, double alpha, double beta,
                                     void* c, int64_t c_row, int64_t m, int64_t n, int64_t k);

  // ---- optimizers
  void (*adamw[kFloatKinds])(const AdamWStep&, void* weights, const void* grad, void* mean,
                             void* square, int64_t count);
  void (*sgd[kFloatKinds])(const SgdStep&, void* weights, const void* grad, void* momentum,
                           int64_t count);

  // ---- random numbers by position
  void (*units_f32)(uint64_t seed, uint64_t first, kernels::RandomUse use, float* out,
                    int64_t count);
  void (*units_f64)(uint64_t seed, uint64_t first, kernels::RandomUse use, double* out,
                    int64_t count);
  void (*normals)(uint64_t seed, uint64_t first, kernels::RandomUse use, double* out,
                  int64_t count);
  /// Maps numbers of [0, 1) to [low, high), for f32, f64, f16 and bf16 (uniform_between).
  void (*between[4])(const void* units, double low, double high, void* out, int64_t count);
  /// In place: mean + deviation * number.
  void (*scale_normals)(double* numbers, double mean, double deviation, int64_t count);
  /// Converts normal numbers of one path to the logarithms of its prices, in place; returns the
  /// last.
  double (*path_steps)(double* numbers, double drift, double diffusion, double logarithm,
                       int64_t count);
  void (*prices)(const double* logarithms, double start, double* out, int64_t count);
};

/// The loops of the best level that this CPU supports, or of FLOW_CPU_LEVEL (base, v3 or v4) if
/// that is lower.
const Loops& loops();
/// The loops of a level by name, or null if this CPU or build does not have it.
const Loops* loops_of_level(const char* level);
/// For tests: sets the result of loops(); null restores the best level.
void use_loops(const Loops* level);

}  // namespace flow::cpu
