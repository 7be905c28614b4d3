// Compares integer elements with any number: 2 < 2.5, and no byte equals 300. What remains per
// element is a comparison of integers, or a constant.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/shared/ops.hpp"
#include "kernels/shared/types.hpp"
#include "kernels/table.hpp"

namespace flow::kernels {

struct IntegerComparison {
  bool is_constant = false;  // `value` is the result for all elements
  bool value = false;
  Compare op = Compare::eq;
  int64_t number = 0;  // in T's range
};

template <typename T>
IntegerComparison integer_comparison(Compare op, Number b) {
  auto constant = [](bool value) { return IntegerComparison{true, value, Compare::eq, 0}; };
  bool below = op == Compare::lt || op == Compare::le || op == Compare::ne;
  bool above = op == Compare::gt || op == Compare::ge || op == Compare::ne;
  int64_t lowest = std::numeric_limits<T>::lowest(), highest = std::numeric_limits<T>::max();
  int64_t number = b.integer;
  if (!b.is_integer) {
    if (std::isnan(b.real)) return constant(op == Compare::ne);
    if (b.real >= 0x1p63) return constant(below);
    if (b.real < -0x1p63) return constant(above);
    double whole = std::floor(b.real);
    bool is_whole = whole == b.real;
    if (!is_whole && (op == Compare::eq || op == Compare::ne)) return constant(op == Compare::ne);
    if (!is_whole && op == Compare::lt) op = Compare::le;  // x < 2.5 is x <= 2
    if (!is_whole && op == Compare::ge) op = Compare::gt;
    number = static_cast<int64_t>(whole);
  }
  if (number > highest) return constant(below);
  if (number < lowest) return constant(above);
  return {false, false, op, number};
}

/// The nearest number that a floating-point type has.
inline Number rounded_to(DType dtype, Number number) {
  return visit_float(dtype, [&](auto type) {
    using T = decltype(type);
    T rounded = number.is_integer ? convert<T>(number.integer) : convert<T>(number.real);
    return Number::of(convert<double>(rounded));
  });
}

/// The nearest number that T has; a fraction is truncated.
template <typename T>
T nearest_of(Number number) {
  if (!number.is_integer) return convert<T>(number.real);
  if constexpr (std::is_integral_v<T>) {
    int64_t lowest = std::numeric_limits<T>::lowest(), highest = std::numeric_limits<T>::max();
    if (number.integer < lowest) return static_cast<T>(lowest);
    if (number.integer > highest) return static_cast<T>(highest);
  }
  return convert<T>(number.integer);
}

}  // namespace flow::kernels
