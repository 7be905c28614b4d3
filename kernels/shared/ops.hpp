// Elementwise, comparison and reduction operations. Enumerators are indexes
// into the tables of kernels.
#pragma once
#include <cstdint>

namespace flow::kernels {

enum class Unary : uint8_t {
  identity,
  neg,
  abs,
  sign,
  square,
  relu,
  exp,
  expm1,
  log,
  log1p,
  sqrt,
  rsqrt,
  reciprocal,
  sin,
  cos,
  tanh,
  sigmoid,
  erf,
  gelu,       // x Φ(x) with the normal distribution's Φ, computed with erf
  gelu_tanh,  // approximation of gelu with tanh, as in GPT-2
  silu,       // x sigmoid(x)
  softplus,   // log(1 + exp(x))
  floor,
  ceil,
  round,  // halves to the even neighbor
};
constexpr int kUnaryCount = 25;

// floor_div rounds down, and mod has the sign of the divisor, as in Lua.
enum class Binary : uint8_t { add, sub, mul, div, pow, maximum, minimum, floor_div, mod };
constexpr int kBinaryCount = 9;

enum class Compare : uint8_t { eq, ne, lt, le, gt, ge };
constexpr int kCompareCount = 6;

// norm: the square root of the sum of squares.
enum class Reduce : uint8_t { sum, mean, product, max, min, norm, var, any, all };
constexpr int kReduceCount = 9;

/// The enumerator's name, a static string.
const char* name_of(Unary op);
const char* name_of(Binary op);
const char* name_of(Compare op);
const char* name_of(Reduce op);

}  // namespace flow::kernels
