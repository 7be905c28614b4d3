// Element-wise operations, and moves.
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/loops/all.hpp"
#include "kernels/cpu/loops/math.hpp"
#include "kernels/shared/philox.hpp"
#include "kernels/shared/scalar.hpp"

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace flow::cpu::FLOW_ISA {
namespace {

using namespace kernels;

// ---- moving

template <typename T>
void gather_run(const void* from, int64_t stride, void* to, int64_t count) {
  const T* in = static_cast<const T*>(from);
  T* out = static_cast<T*>(to);
  for (int64_t i = 0; i < count; i++) out[i] = in[i * stride];
}

template <typename T>
void scatter_run(const void* from, void* to, int64_t stride, int64_t count) {
  const T* in = static_cast<const T*>(from);
  T* out = static_cast<T*>(to);
  for (int64_t i = 0; i < count; i++) out[i * stride] = in[i];
}

template <typename T>
void fill_run(const void* value, void* to, int64_t count) {
  T one = *static_cast<const T*>(value);
  T* out = static_cast<T*>(to);
  for (int64_t i = 0; i < count; i++) out[i] = one;
}

// In tiles, so that a cache line of either side is used completely while it is cached.
template <typename T>
void transpose_tiles(const void* from, int64_t from_stride, void* to, int64_t to_stride,
                     int64_t rows, int64_t columns) {
  constexpr int64_t kTile = 64 / sizeof(T) < 16 ? 16 : 64 / sizeof(T);
  const T* in = static_cast<const T*>(from);
  T* out = static_cast<T*>(to);
  for (int64_t row = 0; row < rows; row += kTile) {
    int64_t row_end = row + kTile < rows ? row + kTile : rows;
    for (int64_t column = 0; column < columns; column += kTile) {
      int64_t column_end = column + kTile < columns ? column + kTile : columns;
      for (int64_t c = column; c < column_end; c++)
        for (int64_t r = row; r < row_end; r++) out[c * to_stride + r] = in[r * from_stride + c];
    }
  }
}

void stream_bytes(const void* from, void* to, size_t bytes) {
  const char* in = static_cast<const char*>(from);
  char* out = static_cast<char*>(to);
  size_t at = 0;
#if defined(__AVX512F__)
  for (; at + 64 <= bytes; at += 64)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out + at), _mm512_loadu_si512(in + at));
#elif defined(__AVX__)
  for (; at + 32 <= bytes; at += 32)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(out + at),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + at)));
#elif defined(__SSE2__)
  for (; at + 16 <= bytes; at += 16)
    _mm_stream_si128(reinterpret_cast<__m128i*>(out + at),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + at)));
#endif
  __builtin_memcpy(out + at, in + at, bytes - at);
}

// Like Half::to_float and Half::from, without branches.
FLOW_HD float widen_half(uint16_t bits) {
  uint32_t sign = uint32_t{bits & 0x8000u} << 16, rest = bits & 0x7fffu;
  float normal = float_of_bits((rest << 13) + 0x38000000u);
  float small = static_cast<float>(static_cast<int32_t>(rest)) * 0x1p-24f;
  uint32_t value = rest >= 0x7c00u ? (rest << 13) + 0x70000000u
                   : rest < 0x400u ? bits_of_float(small)
                                   : bits_of_float(normal);
  return float_of_bits(value | sign);
}

FLOW_HD uint16_t round_half(float value) {
  uint32_t raw = bits_of_float(value), sign = (raw >> 16) & 0x8000u;
  raw &= 0x7fffffffu;
  uint32_t small = bits_of_float(float_of_bits(raw) + 0.5f) - 0x3f000000u;
  uint32_t normal = (raw + 0xfffu + ((raw >> 13) & 1u) - 0x38000000u) >> 13;
  uint32_t half = raw < 0x38800000u ? small : normal;
  half = raw >= 0x477ff000u ? 0x7c00u : half;
  half = raw > 0x7f800000u ? 0x7e00u : half;
  return static_cast<uint16_t>(half | sign);
}

FLOW_HD uint16_t round_brain(float value) {
  uint32_t raw = bits_of_float(value);
  uint32_t rounded = (raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((raw & 0x7fffffffu) > 0x7f800000u ? (raw >> 16) | 0x40u : rounded);
}

void widen_halves(const uint16_t* from, float* to, int64_t count) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16)
    _mm512_storeu_ps(to + i,
                     _mm512_maskz_cvtph_ps(
                         0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
#elif defined(__F16C__)
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
#endif
  for (; i < count; i++) to[i] = widen_half(from[i]);
}

void round_halves(const float* from, uint16_t* to, int64_t count) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm512_maskz_cvtps_ph(0xffff, _mm512_loadu_ps(from + i),
                                              _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__F16C__)
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < count; i++) to[i] = round_half(from[i]);
}

void widen_brains(const uint16_t* from, float* to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) to[i] = float_of_bits(uint32_t{from[i]} << 16);
}

void round_brains(const float* from, uint16_t* to, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) to[i] = round_brain(from[i]);
}

template <typename From, typename To>
void convert_run(const void* from, void* to, int64_t count) {
  const From* in = static_cast<const From*>(from);
  To* out = static_cast<To*>(to);
  for (int64_t i = 0; i < count; i++) out[i] = convert<To>(in[i]);
}

// ---- elements

template <Unary op, typename T>
FLOW_HD T fast(T x) {
  if constexpr (!std::is_floating_point_v<T>) return unary_of<op>(x);
  if constexpr (std::is_floating_point_v<T>) {
    if constexpr (op == Unary::exp) return exp(x);
    if constexpr (op == Unary::expm1) return expm1(x);
    if constexpr (op == Unary::log) return log(x);
    if constexpr (op == Unary::log1p) return log1p(x);
    if constexpr (op == Unary::sqrt) return sqrt(x);
    if constexpr (op == Unary::rsqrt) return T(1) / sqrt(x);
    if constexpr (op == Unary::sin) return sin(x);
    if constexpr (op == Unary::cos) return cos(x);
    if constexpr (op == Unary::tanh) return tanh(x);
    if constexpr (op == Unary::sigmoid) return sigmoid(x);
    if constexpr (op == Unary::erf) return erf(x);
    if constexpr (op == Unary::gelu) return x * gelu_part(x);
    if constexpr (op == Unary::gelu_tanh) return x * gelu_tanh_part(x);
    if constexpr (op == Unary::silu) return x / (T(1) + exp(-x));
    if constexpr (op == Unary::softplus) return (x < T(0) ? T(0) : x) + log1p(exp(-abs(x)));
    if constexpr (op == Unary::floor) return floor(x);
    if constexpr (op == Unary::ceil) return ceil(x);
    if constexpr (op == Unary::round) return rint(x);
    return unary_of<op>(x);
  }
}

template <Unary op, typename T>
FLOW_HD T fast_backward(T x, T y, T grad) {
  if constexpr (op == Unary::sin) return grad * cos(x);
  if constexpr (op == Unary::cos) return grad * -sin(x);
  if constexpr (op == Unary::erf) return grad * (T(kTwoOverRootPi) * exp(-x * x));
  if constexpr (op == Unary::gelu) {
    return grad * (gelu_part(x) + x * (T(kOneOverRootTwoPi) * rough_exp(T(-0.5) * x * x)));
  }
  if constexpr (op == Unary::gelu_tanh) {
    T part = gelu_tanh_part(x);
    T slope = T(2 * kGeluScale) * (T(1) + T(3 * kGeluCube) * (x * x));
    return grad * (part + x * (part * (T(1) - part)) * slope);
  }
  if constexpr (op == Unary::silu) {
    T part = sigmoid(x);
    return grad * (part * (T(1) + x * (T(1) - part)));
  }
  if constexpr (op == Unary::softplus) return grad * sigmoid(x);
  return unary_backward_of<op>(x, y, grad);
}

template <Unary op, typename T>
void unary_run(const void* from, void* to, int64_t count) {
  const T* in = static_cast<const T*>(from);
  T* out = static_cast<T*>(to);
  if constexpr (std::is_same_v<T, float> && (op == Unary::sin || op == Unary::cos)) {
    // `out` may be `in`: elements that need libm are found first.
    bool far = false;
    for (int64_t i = 0; i < count; i++) far |= !(abs(in[i]) <= kTurnsMax);
    if (far) {
      for (int64_t i = 0; i < count; i++)
        out[i] = op == Unary::sin ? __builtin_sinf(in[i]) : __builtin_cosf(in[i]);
      return;
    }
  }
#pragma omp simd
  for (int64_t i = 0; i < count; i++) out[i] = fast<op, T>(in[i]);
}

template <Unary op, typename T>
void unary_backward_run(const void* from, const void* result, const void* grad_data, void* to,
                        int64_t count) {
  const T *in = static_cast<const T*>(from), *y = static_cast<const T*>(result),
          *grad = static_cast<const T*>(grad_data);
  T* out = static_cast<T*>(to);
  if constexpr (std::is_same_v<T, float> && (op == Unary::sin || op == Unary::cos)) {
    bool far = false;
    for (int64_t i = 0; i < count; i++) far |= !(abs(in[i]) <= kTurnsMax);
    if (far) {
      for (int64_t i = 0; i < count; i++) out[i] = unary_backward_of<op>(in[i], y[i], grad[i]);
      return;
    }
  }
#pragma omp simd
  for (int64_t i = 0; i < count; i++) out[i] = fast_backward<op, T>(in[i], y[i], grad[i]);
}

template <Binary op, typename T>
void binary_run(const void* left, const void* right, void* to, int64_t count) {
  const T *a = static_cast<const T*>(left), *b = static_cast<const T*>(right);
  T* out = static_cast<T*>(to);
  if constexpr (op == Binary::mod || op == Binary::pow ||
                (op == Binary::floor_div && std::is_integral_v<T>)) {
    for (int64_t i = 0; i < count; i++) out[i] = binary_of<op>(a[i], b[i]);
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) out[i] = binary_of<op>(a[i], b[i]);
  }
}

template <Compare op, typename T>
void compare_run(const void* left, const void* right, uint8_t* out, int64_t count) {
  const T *a = static_cast<const T*>(left), *b = static_cast<const T*>(right);
#pragma omp simd
  for (int64_t i = 0; i < count; i++) out[i] = compare_of<op>(a[i], b[i]) ? 1 : 0;
}

template <typename T>
void where_run(const uint8_t* condition, const void* left, const void* right, void* to,
               int64_t count) {
  const T *a = static_cast<const T*>(left), *b = static_cast<const T*>(right);
  T* out = static_cast<T*>(to);
#pragma omp simd
  for (int64_t i = 0; i < count; i++) {
    T x = a[i], y = b[i];
    out[i] = condition[i] != 0 ? x : y;
  }
}

template <typename T>
void clamp_run(const void* from, const void* least, const void* most, void* to, int64_t count) {
  const T* in = static_cast<const T*>(from);
  T *out = static_cast<T*>(to), low = *static_cast<const T*>(least),
    high = *static_cast<const T*>(most);
#pragma omp simd
  for (int64_t i = 0; i < count; i++) out[i] = clamp_of(in[i], low, high);
}

template <typename T>
void add_product_run(const void* left, const void* first, const void* second, double factor,
                     void* to, int64_t count) {
  const T *a = static_cast<const T*>(left), *b = static_cast<const T*>(first),
          *c = static_cast<const T*>(second);
  T *out = static_cast<T*>(to), scale = static_cast<T>(factor);
#pragma omp simd
  for (int64_t i = 0; i < count; i++) out[i] = a[i] + scale * b[i] * c[i];
}

template <typename T>
void add_quotient_run(const void* left, const void* first, const void* second, double factor,
                      void* to, int64_t count) {
  const T *a = static_cast<const T*>(left), *b = static_cast<const T*>(first),
          *c = static_cast<const T*>(second);
  T *out = static_cast<T*>(to), scale = static_cast<T>(factor);
#pragma omp simd
  for (int64_t i = 0; i < count; i++) out[i] = a[i] + scale * b[i] / c[i];
}

template <typename T>
void lerp_run(const void* left, const void* right, double part, void* to, int64_t count) {
  const T *a = static_cast<const T*>(left), *b = static_cast<const T*>(right);
  T *out = static_cast<T*>(to), weight = static_cast<T>(part);
#pragma omp simd
  for (int64_t i = 0; i < count; i++) out[i] = lerp_of(a[i], b[i], weight);
}

constexpr int64_t kChunk = 256;

template <typename T>
void dropout_run(const void* from, double p, double scale, uint64_t seed, uint64_t first, void* to,
                 int64_t count) {
  const T* in = static_cast<const T*>(from);
  T *out = static_cast<T*>(to), factor = static_cast<T>(scale);
  // unit < p exactly if unit is less than the T that is p or the next above it.
  T units[kChunk], limit = static_cast<T>(p);
  if (static_cast<double>(limit) < p) limit += limit * T(0x1p-23);
  for (int64_t at = 0; at < count; at += kChunk) {
    int64_t length = count - at < kChunk ? count - at : kChunk;
    uint64_t number = first + static_cast<uint64_t>(at);
    if constexpr (std::is_same_v<T, float>) {
      units_float(seed, number, RandomUse::dropout, units, length);
    } else {
      units_double(seed, number, RandomUse::dropout, units, length);
    }
#pragma omp simd
    for (int64_t i = 0; i < length; i++)
      out[at + i] = units[i] < limit ? T(0) : in[at + i] * factor;
  }
}

// ---- the table

template <int op>
void fill_unary(Loops& loops) {
  constexpr Unary name = static_cast<Unary>(op);
  auto& row = loops.unary[op];
  row[kF32] = unary_run<name, float>;
  row[kF64] = unary_run<name, double>;
  row[kI64] = unary_run<name, int64_t>;
  row[kI32] = unary_run<name, int32_t>;
  row[kU8] = unary_run<name, uint8_t>;
  loops.unary_backward[op][kF32] = unary_backward_run<name, float>;
  loops.unary_backward[op][kF64] = unary_backward_run<name, double>;
}

template <int op>
void fill_binary(Loops& loops) {
  constexpr Binary name = static_cast<Binary>(op);
  auto& row = loops.binary[op];
  row[kF32] = binary_run<name, float>;
  row[kF64] = binary_run<name, double>;
  row[kI64] = binary_run<name, int64_t>;
  row[kI32] = binary_run<name, int32_t>;
  row[kU8] = binary_run<name, uint8_t>;
}

template <int op>
void fill_compare(Loops& loops) {
  constexpr Compare name = static_cast<Compare>(op);
  auto& row = loops.compare[op];
  row[kF32] = compare_run<name, float>;
  row[kF64] = compare_run<name, double>;
  row[kI64] = compare_run<name, int64_t>;
  row[kI32] = compare_run<name, int32_t>;
  row[kU8] = compare_run<name, uint8_t>;
}

template <int op = 0>
void fill_all(Loops& loops) {
  if constexpr (op < kUnaryCount) fill_unary<op>(loops);
  if constexpr (op < kBinaryCount) fill_binary<op>(loops);
  if constexpr (op < kCompareCount) fill_compare<op>(loops);
  if constexpr (op < kUnaryCount) fill_all<op + 1>(loops);
}

template <typename From>
void fill_convert(void (**row)(const void*, void*, int64_t)) {
  row[kF32] = convert_run<From, float>;
  row[kF64] = convert_run<From, double>;
  row[kI64] = convert_run<From, int64_t>;
  row[kI32] = convert_run<From, int32_t>;
  row[kU8] = convert_run<From, uint8_t>;
  row[kKinds] = convert_run<From, Bool>;
}

template <typename T>
void fill_moves(Loops& loops, int size) {
  loops.gather[size] = gather_run<T>;
  loops.scatter[size] = scatter_run<T>;
  loops.fill[size] = fill_run<T>;
  loops.transpose[size] = transpose_tiles<T>;
  loops.where[size] = where_run<T>;
}

template <typename T>
void fill_floats(Loops& loops, int kind) {
  loops.add_product[kind] = add_product_run<T>;
  loops.add_quotient[kind] = add_quotient_run<T>;
  loops.lerp[kind] = lerp_run<T>;
  loops.dropout[kind] = dropout_run<T>;
}

}  // namespace

void fill_elements(Loops& loops) {
  fill_all(loops);
  fill_moves<uint8_t>(loops, 0);
  fill_moves<uint16_t>(loops, 1);
  fill_moves<uint32_t>(loops, 2);
  fill_moves<uint64_t>(loops, 3);
  loops.stream = stream_bytes;
  loops.widen_f16 = widen_halves;
  loops.widen_bf16 = widen_brains;
  loops.round_f16 = round_halves;
  loops.round_bf16 = round_brains;
  fill_convert<float>(loops.convert[kF32]);
  fill_convert<double>(loops.convert[kF64]);
  fill_convert<int64_t>(loops.convert[kI64]);
  fill_convert<int32_t>(loops.convert[kI32]);
  fill_convert<uint8_t>(loops.convert[kU8]);
  loops.clamp[kF32] = clamp_run<float>;
  loops.clamp[kF64] = clamp_run<double>;
  loops.clamp[kI64] = clamp_run<int64_t>;
  loops.clamp[kI32] = clamp_run<int32_t>;
  loops.clamp[kU8] = clamp_run<uint8_t>;
  fill_floats<float>(loops, kF32);
  fill_floats<double>(loops, kF64);
}

}  // namespace flow::cpu::FLOW_ISA
