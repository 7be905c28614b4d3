// The operations on one element, for host and device. Over float and double they use libm's names,
// so a kernel must equal them up to the last bits of its libm; over integers it must equal them
// exactly.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/shared/hd.hpp"
#include "kernels/shared/ops.hpp"
#include "kernels/shared/philox.hpp"
#include "kernels/shared/types.hpp"

namespace flow::kernels {

constexpr double kRootHalf = 0.70710678118654752440;       // sqrt(1 / 2)
constexpr double kTwoOverRootPi = 1.12837916709551257390;  // 2 / sqrt(pi)
constexpr double kOneOverRootTwoPi = 0.39894228040143267794;
constexpr double kGeluScale = 0.79788456080286535588;  // sqrt(2 / pi)
constexpr double kGeluCube = 0.044715;

/// An integer's bits as an unsigned number, whose arithmetic wraps around.
template <typename T>
FLOW_HD std::make_unsigned_t<T> wrapping(T value) {
  return static_cast<std::make_unsigned_t<T>>(value);
}

template <typename T>
FLOW_HD T sigmoid_of(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

#if defined(__CUDA_ARCH__) || defined(FLOW_EMULATE)
/// (1 + tanh(u)) / 2 of gelu_tanh, which is sigmoid(2 u), on a GPU: two special instructions in
/// place of a tanh.
FLOW_HD float gelu_tanh_share(float x) {
  constexpr double scale = -2 * kGeluScale * 1.44269504088896340736;  // log2(e)
  float exponent = x * (x * x * float(scale * kGeluCube) + float(scale));
#ifdef FLOW_EMULATE
  return 1.0f / (1.0f + std::exp2(exponent));
#else
  float power, share;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(share) : "f"(1.0f + power));
  return share;
#endif
}
#endif

template <Unary op, typename T>
FLOW_HD T unary_of(T x) {
  if constexpr (op == Unary::identity) return x;
  if constexpr (op == Unary::sign) return x > T(0) ? T(1) : x < T(0) ? static_cast<T>(-1) : x;
  if constexpr (op == Unary::relu) return x < T(0) ? T(0) : x;
  if constexpr (std::is_integral_v<T>) {
    using Wide = std::conditional_t<sizeof(T) < 4, uint32_t, std::make_unsigned_t<T>>;
    if constexpr (op == Unary::neg) return static_cast<T>(Wide(0) - static_cast<Wide>(x));
    if constexpr (op == Unary::abs)
      return x < T(0) ? static_cast<T>(Wide(0) - static_cast<Wide>(x)) : x;
    if constexpr (op == Unary::square)
      return static_cast<T>(static_cast<Wide>(x) * static_cast<Wide>(x));
    return x;
  } else {
    if constexpr (op == Unary::neg) return -x;
    if constexpr (op == Unary::abs) return std::fabs(x);
    if constexpr (op == Unary::square) return x * x;
    if constexpr (op == Unary::exp) return std::exp(x);
    if constexpr (op == Unary::expm1) return std::expm1(x);
    if constexpr (op == Unary::log) return std::log(x);
    if constexpr (op == Unary::log1p) return std::log1p(x);
    if constexpr (op == Unary::sqrt) return std::sqrt(x);
    if constexpr (op == Unary::rsqrt) return T(1) / std::sqrt(x);
    if constexpr (op == Unary::reciprocal) return T(1) / x;
    if constexpr (op == Unary::sin) return std::sin(x);
    if constexpr (op == Unary::cos) return std::cos(x);
    if constexpr (op == Unary::tanh) return std::tanh(x);
    if constexpr (op == Unary::sigmoid) return sigmoid_of(x);
    if constexpr (op == Unary::erf) return std::erf(x);
    if constexpr (op == Unary::gelu) return T(0.5) * x * (T(1) + std::erf(x * T(kRootHalf)));
#if defined(__CUDA_ARCH__) || defined(FLOW_EMULATE)
    if constexpr (op == Unary::gelu_tanh && std::is_same_v<T, float>) return x * gelu_tanh_share(x);
#endif
    if constexpr (op == Unary::gelu_tanh)
      return T(0.5) * x * (T(1) + std::tanh(T(kGeluScale) * (x + T(kGeluCube) * x * x * x)));
    if constexpr (op == Unary::silu) return x / (T(1) + std::exp(-x));
    if constexpr (op == Unary::softplus)
      return (x < T(0) ? T(0) : x) + std::log1p(std::exp(-std::fabs(x)));
    if constexpr (op == Unary::floor) return std::floor(x);
    if constexpr (op == Unary::ceil) return std::ceil(x);
    if constexpr (op == Unary::round) return std::rint(x);
  }
}

/// grad * op'(x), where y = op(x). At a point without a derivative it is that of one side, or 0.
template <Unary op, typename T>
FLOW_HD T unary_backward_of(T x, T y, T grad) {
  (void)x, (void)y;
  if constexpr (op == Unary::identity) return grad;
  if constexpr (op == Unary::neg) return -grad;
  if constexpr (op == Unary::abs) return x > T(0) ? grad : x < T(0) ? -grad : grad * x;
  if constexpr (op == Unary::square) return grad * (T(2) * x);
  if constexpr (op == Unary::relu) return x <= T(0) ? T(0) : grad;
  if constexpr (op == Unary::exp) return grad * y;
  if constexpr (op == Unary::expm1) return grad * (y + T(1));
  if constexpr (op == Unary::log) return grad / x;
  if constexpr (op == Unary::log1p) return grad / (T(1) + x);
  if constexpr (op == Unary::sqrt) return grad * (T(0.5) / y);
  if constexpr (op == Unary::rsqrt) return grad * (T(-0.5) * (y * y * y));
  if constexpr (op == Unary::reciprocal) return grad * -(y * y);
  if constexpr (op == Unary::sin) return grad * std::cos(x);
  if constexpr (op == Unary::cos) return grad * -std::sin(x);
  if constexpr (op == Unary::tanh) return grad * (T(1) - y * y);
  if constexpr (op == Unary::sigmoid) return grad * (y * (T(1) - y));
  if constexpr (op == Unary::erf) return grad * (T(kTwoOverRootPi) * std::exp(-x * x));
  if constexpr (op == Unary::gelu) {
    T below = T(0.5) * (T(1) + std::erf(x * T(kRootHalf)));
    return grad * (below + x * (T(kOneOverRootTwoPi) * std::exp(T(-0.5) * x * x)));
  }
#if defined(__CUDA_ARCH__) || defined(FLOW_EMULATE)
  if constexpr (op == Unary::gelu_tanh && std::is_same_v<T, float>) {
    float share = gelu_tanh_share(x);
    float slope = float(2 * kGeluScale) * (1.0f + float(3 * kGeluCube) * x * x);
    return grad * (share + x * (share * (1.0f - share)) * slope);
  }
#endif
  if constexpr (op == Unary::gelu_tanh) {
    T bent = std::tanh(T(kGeluScale) * (x + T(kGeluCube) * x * x * x));
    T slope = T(kGeluScale) * (T(1) + T(3 * kGeluCube) * x * x);
    return grad * (T(0.5) * (T(1) + bent) + T(0.5) * x * (T(1) - bent * bent) * slope);
  }
  if constexpr (op == Unary::silu) {
    T part = sigmoid_of(x);
    return grad * (part * (T(1) + x * (T(1) - part)));
  }
  if constexpr (op == Unary::softplus) return grad * sigmoid_of(x);
  return T(0);  // sign, floor, ceil, round
}

/// The floor of the exact quotient, which may differ from that of a rounded a / b (Python's
/// float.__floordiv__).
template <typename T>
FLOW_HD T floor_quotient(T a, T b) {
  if (b == T(0)) return a / b;
  T rest = std::fmod(a, b), quotient = (a - rest) / b;
  if (rest != T(0) && (rest < T(0)) != (b < T(0))) quotient -= T(1);
  if (quotient == T(0)) return std::copysign(T(0), a / b);
  T whole = std::floor(quotient);
  return quotient - whole > T(0.5) ? whole + T(1) : whole;
}

/// base^exponent by squaring, which wraps around. A fractional power is 0.
template <typename T>
FLOW_HD T integer_power(T base, T exponent) {
  using Wide = std::conditional_t<sizeof(T) < 4, uint32_t, std::make_unsigned_t<T>>;
  if constexpr (std::is_signed_v<T>) {
    if (exponent < 0 && base != T(1) && base != T(-1)) return T(0);
    if (exponent < 0) return exponent % 2 == 0 ? T(1) : base;
  }
  Wide power = static_cast<Wide>(base), result = 1;
  for (Wide left = static_cast<Wide>(exponent); left != 0; left >>= 1, power *= power)
    if ((left & 1) != 0) result *= power;
  return static_cast<T>(result);
}

template <Binary op, typename T>
FLOW_HD T binary_of(T a, T b) {
  if constexpr (op == Binary::maximum) return a > b || a != a ? a : b;
  if constexpr (op == Binary::minimum) return a < b || a != a ? a : b;
  if constexpr (std::is_integral_v<T>) {
    using Wide = std::conditional_t<sizeof(T) < 4, uint32_t, std::make_unsigned_t<T>>;
    Wide x = static_cast<Wide>(a), y = static_cast<Wide>(b);
    if constexpr (op == Binary::add) return static_cast<T>(x + y);
    if constexpr (op == Binary::sub) return static_cast<T>(x - y);
    if constexpr (op == Binary::mul) return static_cast<T>(x * y);
    if constexpr (op == Binary::floor_div) {
      if (b == T(0)) return T(0);
      if constexpr (std::is_signed_v<T>) {
        if (b == T(-1)) return static_cast<T>(Wide(0) - x);  // the lowest number wraps
        T whole = a / b;
        return a % b != 0 && (a < 0) != (b < 0) ? whole - 1 : whole;
      } else {
        return static_cast<T>(a / b);
      }
    }
    if constexpr (op == Binary::mod) {
      if (b == T(0)) return T(0);
      if constexpr (std::is_signed_v<T>) {
        if (b == T(-1)) return T(0);
        T rest = a % b;
        return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
      } else {
        return static_cast<T>(a % b);
      }
    }
    if constexpr (op == Binary::pow) return integer_power(a, b);
    return T(0);  // div is for floats only
  } else {
    if constexpr (op == Binary::add) return a + b;
    if constexpr (op == Binary::sub) return a - b;
    if constexpr (op == Binary::mul) return a * b;
    if constexpr (op == Binary::div) return a / b;
    if constexpr (op == Binary::pow) return std::pow(a, b);
    if constexpr (op == Binary::floor_div) return floor_quotient(a, b);
    if constexpr (op == Binary::mod) {  // of b's sign, as in Lua
      T rest = std::fmod(a, b);
      return rest != T(0) && (rest < T(0)) != (b < T(0)) ? rest + b : rest;
    }
  }
}

template <Compare op, typename T>
FLOW_HD bool compare_of(T a, T b) {
  if constexpr (op == Compare::eq) return a == b;
  if constexpr (op == Compare::ne) return a != b;
  if constexpr (op == Compare::lt) return a < b;
  if constexpr (op == Compare::le) return a <= b;
  if constexpr (op == Compare::gt) return a > b;
  if constexpr (op == Compare::ge) return a >= b;
}

/// min(max(x, low), high). NaN stays NaN.
template <typename T>
FLOW_HD T clamp_of(T x, T low, T high) {
  T above = x < low ? low : x;
  return above > high ? high : above;
}

/// a at 0 and b at 1, exactly: computed from the nearer end, as in PyTorch.
template <typename T>
FLOW_HD T lerp_of(T a, T b, T weight) {
  T step = b - a;
  return std::fabs(weight) < T(0.5) ? a + weight * step : b - step * (T(1) - weight);
}

/// The largest number of the type below a finite `value`.
template <typename T>
FLOW_HD T next_below(T value) {
  if constexpr (is_small_float<T>) {
    if ((value.bits & 0x7fff) == 0) return T{0x8001};
    return T{static_cast<uint16_t>(value.bits & 0x8000 ? value.bits + 1 : value.bits - 1)};
  } else {
    return std::nextafter(value, static_cast<T>(-INFINITY));
  }
}

/// Maps a uniform number of [0, 1) to [low, high). If rounding reaches `high`, which is not in the
/// range, the result is `below`, next_below of high.
template <typename T>
FLOW_HD T uniform_between(double unit, double low, double high, T below) {
  T value = convert<T>(fma(high - low, unit, low));
  bool inside = convert<double>(value) < convert<double>(convert<T>(high));
  return inside || low >= high ? value : below;
}

/// Whether uniform number i of the seed is less than p: the elements that dropout drops (with a use
/// of its own; as a float except for f64) and where bernoulli is 1 (as a float).
FLOW_HD bool is_below(uint64_t seed, uint64_t i, double p, RandomUse use) {
  return static_cast<double>(uniform_float(seed, i, use)) < p;
}
FLOW_HD bool is_below_by_double(uint64_t seed, uint64_t i, double p, RandomUse use) {
  return uniform_double(seed, i, use) < p;
}

/// The upper half of the 128-bit product.
FLOW_HD uint64_t multiply_high(uint64_t a, uint64_t b) {
  uint64_t a0 = a & 0xffffffff, a1 = a >> 32, b0 = b & 0xffffffff, b1 = b >> 32;
  uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (middle & 0xffffffff);
  return a1 * b1 + (middle >> 32) + (other >> 32);
}

/// Number i of the seed in low, low + 1, … (`range` of them; 0 is 2^64): two per block.
FLOW_HD int64_t random_integer(uint64_t seed, uint64_t i, int64_t low, uint64_t range) {
  Random4 block = random_block(seed, i / 2, RandomUse::integers);
  uint64_t bits = join(block.word[i % 2 * 2], block.word[i % 2 * 2 + 1]);
  return static_cast<int64_t>(static_cast<uint64_t>(low) +
                              (range == 0 ? bits : multiply_high(bits, range)));
}

}  // namespace flow::kernels
