// The element types as C++ sees them, and the one way from each to each.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "flow/value.hpp"

namespace flow::cpu {

/// IEEE half: storage only, arithmetic is done in float.
struct Half {
  uint16_t bits;
  static Half from(float value);
  float to_float() const;
};
/// The upper half of a float.
struct Brain {
  uint16_t bits;
  static Brain from(float value) {
    uint32_t raw = std::bit_cast<uint32_t>(value);
    if (std::isnan(value)) return {static_cast<uint16_t>((raw >> 16) | 0x40)};
    raw += 0x7fff + ((raw >> 16) & 1);  // nearest, ties to even
    return {static_cast<uint16_t>(raw >> 16)};
  }
  float to_float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};
/// A byte that is 0 or 1.
struct Bool {
  uint8_t bits;
};

template <typename T>
constexpr bool is_small_float = std::is_same_v<T, Half> || std::is_same_v<T, Brain>;

template <typename T>
bool is_nan(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::isnan(value);
  } else {
    return false;
  }
}

/// Floats to integers cut the fraction off and stop at the ends of the range, NaN is 0; integers to
/// smaller ones wrap; anything but 0 is true.
template <typename To, typename From>
To convert(From value) {
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
    if (std::isnan(value)) return 0;
    if (value <= static_cast<From>(std::numeric_limits<To>::min()))
      return std::numeric_limits<To>::min();
    if (value >= static_cast<From>(std::numeric_limits<To>::max()))
      return std::numeric_limits<To>::max();
    return static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

/// Calls f with a value of the element type.
template <typename F>
void visit(DType dtype, F f) {
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
}

/// As visit, for types that arithmetic is done in.
template <typename F>
void visit_number(DType dtype, F f) {
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
      FLOW_CHECK(!"arithmetic is done in f32, f64, i64, i32 or u8");
  }
}

inline bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::f16 || dtype == DType::bf16;
}

}  // namespace flow::cpu
