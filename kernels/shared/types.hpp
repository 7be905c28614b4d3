// The C++ types of elements, on host and device, and the conversions between them.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "flow/dtype.hpp"
#include "flow/result.hpp"
#include "kernels/shared/hd.hpp"

namespace flow::kernels {

FLOW_HD uint32_t bits_of(float value) {
  uint32_t raw;
  __builtin_memcpy(&raw, &value, sizeof raw);
  return raw;
}
FLOW_HD float float_of(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

/// IEEE half: storage only, arithmetic uses float. Rounds to nearest, ties to even.
struct Half {
  uint16_t bits;

  FLOW_HD static Half from(float value) {
    uint32_t raw = bits_of(value);
    uint16_t sign = static_cast<uint16_t>((raw >> 16) & 0x8000);
    raw &= 0x7fffffff;
    if (raw > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00)};   // NaN
    if (raw >= 0x477ff000) return {static_cast<uint16_t>(sign | 0x7c00)};  // rounds to infinity
    if (raw < 0x38800000) {  // subnormal: let the adder round at the half's last bit
      float aligned = float_of(raw) + 0.5f;
      return {static_cast<uint16_t>(sign | (bits_of(aligned) - 0x3f000000))};
    }
    raw += 0xfff + ((raw >> 13) & 1);
    return {static_cast<uint16_t>(sign | ((raw - 0x38000000) >> 13))};
  }

  FLOW_HD float to_float() const {
    uint32_t sign = uint32_t{bits & 0x8000u} << 16;
    uint32_t exponent = (bits >> 10) & 31, fraction = bits & 0x3ff;
    if (exponent == 0) {
      float value = static_cast<float>(fraction) * 0x1p-24f;
      return sign ? -value : value;
    }
    exponent = exponent == 31 ? 255 : exponent + 112;
    return float_of(sign | (exponent << 23) | (fraction << 13));
  }
};

/// The upper half of a float. Rounds to nearest, ties to even.
struct Brain {
  uint16_t bits;

  FLOW_HD static Brain from(float value) {
    uint32_t raw = bits_of(value);
    if ((raw & 0x7fffffff) > 0x7f800000) return {static_cast<uint16_t>((raw >> 16) | 0x40)};  // NaN
    raw += 0x7fff + ((raw >> 16) & 1);
    return {static_cast<uint16_t>(raw >> 16)};
  }
  FLOW_HD float to_float() const { return float_of(uint32_t{bits} << 16); }
};

/// A byte that is 0 or 1.
struct Bool {
  uint8_t bits;
};

template <typename T>
constexpr bool is_small_float = std::is_same_v<T, Half> || std::is_same_v<T, Brain>;

/// The compute type of an element: float for f16 and bf16, u8 for bool, otherwise the type itself.
template <typename T>
struct ComputeOf {
  using type = T;
};
template <>
struct ComputeOf<Half> {
  using type = float;
};
template <>
struct ComputeOf<Brain> {
  using type = float;
};
template <>
struct ComputeOf<Bool> {
  using type = uint8_t;
};
template <typename T>
using Compute = typename ComputeOf<T>::type;

template <typename T>
FLOW_HD bool is_nan(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return value != value;
  } else {
    return false;
  }
}

/// Floats to integers truncate and saturate, NaN is 0; integers to smaller ones wrap around;
/// everything except 0 is true.
template <typename To, typename From>
FLOW_HD To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (is_small_float<From>) {
    return convert<To>(value.to_float());
  } else if constexpr (std::is_same_v<From, Bool>) {
    return convert<To>(value.bits);
  } else if constexpr (is_small_float<To>) {
    return To::from(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, Bool>) {
    return Bool{static_cast<uint8_t>(value != From{0})};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr To lowest = std::is_signed_v<To> ? To(To{1} << (sizeof(To) * 8 - 1)) : To{0};
    constexpr To highest = static_cast<To>(~lowest);
    if (value != value) return 0;
    if (value <= static_cast<From>(lowest)) return lowest;
    if (value >= static_cast<From>(highest)) return highest;
    return static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

/// Calls f with a value of the element type.
template <typename F>
auto visit(DType dtype, F f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::f64:
      return f(double{});
    case DType::f16:
      return f(Half{});
    case DType::bf16:
      return f(Brain{});
    case DType::i64:
      return f(int64_t{});
    case DType::i32:
      return f(int32_t{});
    case DType::u8:
      return f(uint8_t{});
    case DType::boolean:
      return f(Bool{});
  }
  check_failed("a tensor's type", __FILE__, __LINE__);
}

/// Like visit, for f32, f64, f16 and bf16.
template <typename F>
auto visit_float(DType dtype, F f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::f64:
      return f(double{});
    case DType::f16:
      return f(Half{});
    case DType::bf16:
      return f(Brain{});
    default:
      check_failed("a type of floats", __FILE__, __LINE__);
  }
}

/// Like visit, for the types of arithmetic: f32, f64, i64, i32 and u8.
template <typename F>
auto visit_number(DType dtype, F f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::f64:
      return f(double{});
    case DType::i64:
      return f(int64_t{});
    case DType::i32:
      return f(int32_t{});
    case DType::u8:
      return f(uint8_t{});
    default:
      check_failed("a type that arithmetic is done in", __FILE__, __LINE__);
  }
}

inline bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::f16 || dtype == DType::bf16;
}
inline bool is_integer(DType dtype) { return !is_float(dtype) && dtype != DType::boolean; }

}  // namespace flow::kernels
