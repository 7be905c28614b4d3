#include "transports/collective/reduce.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

// Compiled for several CPU levels; the best is selected at run time. Sanitizers start too late for
// that selection.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FLOW_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define FLOW_CLONES
#endif

// Buffers may be equal element by element, and never overlap otherwise.
#ifdef __clang__
#define FLOW_NO_OVERLAP _Pragma("clang loop vectorize(assume_safety)")
#else
#define FLOW_NO_OVERLAP _Pragma("GCC ivdep")
#endif

namespace flow::collective {
namespace {

constexpr size_t kBlock = 1024;  // elements: stays in the L1 cache

#define FLOW_REDUCE(NAME, TYPE, EXPRESSION)                                           \
  FLOW_CLONES void NAME(TYPE* to, const TYPE* one, const TYPE* other, size_t count) { \
    FLOW_NO_OVERLAP for (size_t i = 0; i < count; i++) {                              \
      TYPE a = one[i], b = other[i];                                                  \
      to[i] = static_cast<TYPE>(EXPRESSION);                                          \
    }                                                                                 \
  }
#define FLOW_ORDER(TYPE, NAME)                             \
  FLOW_REDUCE(NAME##_max, TYPE, (a > b || a != a) ? a : b) \
  FLOW_REDUCE(NAME##_min, TYPE, (a < b || a != a) ? a : b)

FLOW_ORDER(float, f32)
FLOW_ORDER(double, f64)
FLOW_ORDER(int64_t, i64)
FLOW_ORDER(int32_t, i32)
FLOW_ORDER(uint8_t, u8)
FLOW_REDUCE(f32_sum, float, a + b)
FLOW_REDUCE(f64_sum, double, a + b)
// Sums of integers wrap around, which is defined for unsigned types only.
FLOW_REDUCE(u64_sum, uint64_t, a + b)
FLOW_REDUCE(u32_sum, uint32_t, a + b)
FLOW_REDUCE(u8_sum, uint8_t, a + b)

FLOW_CLONES void f32_divide(float* to, const float* from, float divisor, size_t count) {
  FLOW_NO_OVERLAP for (size_t i = 0; i < count; i++) to[i] = from[i] / divisor;
}

FLOW_CLONES void f64_divide(double* to, const double* from, double divisor, size_t count) {
  FLOW_NO_OVERLAP for (size_t i = 0; i < count; i++) to[i] = from[i] / divisor;
}

inline __attribute__((always_inline)) float float_of(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

inline __attribute__((always_inline)) uint32_t bits_of(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Without branches, so that it vectorizes: every case is computed and one is selected.
FLOW_CLONES void f16_widen(const uint16_t* from, float* to, size_t count) {
  for (size_t i = 0; i < count; i++) {
    uint32_t half = from[i];
    uint32_t sign = (half & 0x8000u) << 16, shifted = (half & 0x7fffu) << 13;
    uint32_t normal = shifted + (112u << 23);
    uint32_t infinite = shifted + (224u << 23);
    uint32_t subnormal = bits_of(float_of(shifted + (113u << 23)) - float_of(113u << 23));
    uint32_t exponent = shifted & 0x0f800000u;
    uint32_t value = exponent == 0x0f800000u ? infinite : normal;
    to[i] = float_of(sign | (exponent == 0 ? subnormal : value));
  }
}

FLOW_CLONES void f16_narrow(const float* from, uint16_t* to, size_t count) {
  for (size_t i = 0; i < count; i++) {
    uint32_t raw = bits_of(from[i]);
    uint32_t sign = (raw >> 16) & 0x8000u, size = raw & 0x7fffffffu;
    uint32_t subnormal = bits_of(float_of(size) + 0.5f) - 0x3f000000u;
    uint32_t rounded = (size + 0xfffu + ((size >> 13) & 1u) - 0x38000000u) >> 13;
    uint32_t value = size < 0x38800000u ? subnormal : rounded;
    value = size >= 0x477ff000u ? 0x7c00u : value;
    value = size > 0x7f800000u ? 0x7e00u : value;
    to[i] = static_cast<uint16_t>(sign | value);
  }
}

FLOW_CLONES void bf16_widen(const uint16_t* from, float* to, size_t count) {
  for (size_t i = 0; i < count; i++) to[i] = float_of(uint32_t{from[i]} << 16);
}

FLOW_CLONES void bf16_narrow(const float* from, uint16_t* to, size_t count) {
  for (size_t i = 0; i < count; i++) {
    uint32_t raw = bits_of(from[i]);
    uint32_t rounded = (raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16;
    uint32_t nan = (raw >> 16) | 0x40u;
    to[i] = static_cast<uint16_t>((raw & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
  }
}

template <typename T>
using ReduceLoop = void (*)(T*, const T*, const T*, size_t);

template <typename T>
ReduceLoop<T> loop_of(ReduceOp op, ReduceLoop<T> sum, ReduceLoop<T> max, ReduceLoop<T> min) {
  return op == ReduceOp::max ? max : op == ReduceOp::min ? min : sum;
}

void divide(float* data, int divisor, size_t count) {
  if (divisor > 1) f32_divide(data, data, static_cast<float>(divisor), count);
}

void divide(double* data, int divisor, size_t count) {
  if (divisor > 1) f64_divide(data, data, divisor, count);
}

template <typename T>
void divide(T*, int, size_t) {}  // a mean of integers is rejected earlier

/// Results go to a separate block, because the output may be an input that is still to be read.
template <typename T>
void reduce_as(ReduceLoop<T> loop, const Reducer& how, const void* const* in, int inputs,
               size_t count, void* out, void* also) {
  alignas(64) T block[kBlock];
  for (size_t at = 0; at < count; at += kBlock) {
    size_t size = std::min(kBlock, count - at);
    auto input = [&](int i) { return static_cast<const T*>(in[i]) + at; };
    if (inputs == 1)
      std::memcpy(block, input(0), size * sizeof(T));
    else
      loop(block, input(0), input(1), size);
    for (int i = 2; i < inputs; i++) loop(block, block, input(i), size);
    divide(block, how.divisor, size);
    std::memcpy(static_cast<T*>(out) + at, block, size * sizeof(T));
    if (also != nullptr) std::memcpy(static_cast<T*>(also) + at, block, size * sizeof(T));
  }
}

void reduce_small(ReduceLoop<float> loop, const Reducer& how, const void* const* in, int inputs,
                  size_t count, void* out, void* also) {
  alignas(64) float block[kBlock], next[kBlock];
  alignas(64) uint16_t rounded[kBlock];
  for (size_t at = 0; at < count; at += kBlock) {
    size_t size = std::min(kBlock, count - at);
    widen(how.dtype, static_cast<const uint16_t*>(in[0]) + at, block, size);
    for (int i = 1; i < inputs; i++) {
      widen(how.dtype, static_cast<const uint16_t*>(in[i]) + at, next, size);
      loop(block, block, next, size);
    }
    divide(block, how.divisor, size);
    narrow(how.dtype, block, rounded, size);
    std::memcpy(static_cast<uint16_t*>(out) + at, rounded, size * sizeof(uint16_t));
    if (also != nullptr)
      std::memcpy(static_cast<uint16_t*>(also) + at, rounded, size * sizeof(uint16_t));
  }
}

}  // namespace

bool is_small_float(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

void widen(DType small, const void* from, float* to, size_t count) {
  auto loop = small == DType::f16 ? f16_widen : bf16_widen;
  loop(static_cast<const uint16_t*>(from), to, count);
}

void narrow(DType small, const float* from, void* to, size_t count) {
  auto loop = small == DType::f16 ? f16_narrow : bf16_narrow;
  loop(from, static_cast<uint16_t*>(to), count);
}

void reduce(const Reducer& how, const void* const* in, int inputs, size_t count, void* out,
            void* also) {
  switch (how.dtype) {
    case DType::f32:
      return reduce_as<float>(loop_of<float>(how.op, f32_sum, f32_max, f32_min), how, in, inputs,
                              count, out, also);
    case DType::f64:
      return reduce_as<double>(loop_of<double>(how.op, f64_sum, f64_max, f64_min), how, in, inputs,
                               count, out, also);
    case DType::f16:
    case DType::bf16:
      return reduce_small(loop_of<float>(how.op, f32_sum, f32_max, f32_min), how, in, inputs, count,
                          out, also);
    case DType::i64:
      if (how.op == ReduceOp::sum)
        return reduce_as<uint64_t>(u64_sum, how, in, inputs, count, out, also);
      return reduce_as<int64_t>(how.op == ReduceOp::max ? i64_max : i64_min, how, in, inputs, count,
                                out, also);
    case DType::i32:
      if (how.op == ReduceOp::sum)
        return reduce_as<uint32_t>(u32_sum, how, in, inputs, count, out, also);
      return reduce_as<int32_t>(how.op == ReduceOp::max ? i32_max : i32_min, how, in, inputs, count,
                                out, also);
    case DType::u8:
    case DType::boolean:
      return reduce_as<uint8_t>(loop_of<uint8_t>(how.op, u8_sum, u8_max, u8_min), how, in, inputs,
                                count, out, also);
  }
  check_failed("a tensor's type", __FILE__, __LINE__);
}

}  // namespace flow::collective
