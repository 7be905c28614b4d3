// Normal numbers by position: pairs of Box and Muller from Philox. Logarithm, sine and cosine use
// only IEEE operations and explicit fma, and the compiler cannot fuse a product with a sum, so host
// and device, and every instruction set level, compute the same bits. The polynomials are those of
// Sun's fdlibm.
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/shared/hd.hpp"
#include "kernels/shared/philox.hpp"

namespace flow::kernels {

FLOW_HD uint64_t bits_of(double value) {
  uint64_t raw;
  __builtin_memcpy(&raw, &value, sizeof raw);
  return raw;
}
FLOW_HD double double_of(uint64_t bits) {
  double value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

/// Of a normal number above 0; within 1 ulp.
FLOW_HD double exact_log(double x) {
  uint64_t bits = bits_of(x);
  // x = 2^k (1 + f), where 1 + f lies between sqrt(1/2) and sqrt(2).
  int32_t exponent = static_cast<int32_t>((bits - 0x3fe6a09e667f3bcdu) >> 52 << 20) >> 20;
  double k = exponent;
  double f = double_of(bits - (static_cast<uint64_t>(static_cast<int64_t>(exponent)) << 52)) - 1;
  double s = f / (2 + f), z = s * s;
  double p = fma(z, 1.479819860511658591e-01, 1.531383769920937332e-01);
  p = fma(z, p, 1.818357216161805012e-01);
  p = fma(z, p, 2.222219843214978396e-01);
  p = fma(z, p, 2.857142874366239149e-01);
  p = fma(z, p, 3.999999999940941908e-01);
  p = fma(z, p, 6.666666666666735130e-01);
  double half = 0.5 * f;
  double bent = fma(z, p, half * f);
  double rest = fma(half, f, -fma(s, bent, k * 1.90821492927058770002e-10)) - f;
  return fma(k, 6.93147180369123816490e-01, -rest);
}

/// For x with a normal result; other results are 0 or infinity. Within 1 ulp.
FLOW_HD double exact_exp(double x) {
  double inside = x < -800 ? -800 : x > 800 ? 800 : x;
  double k = floor(fma(inside, 1.44269504088896338700e+00, 0.5));
  double r = fma(-k, 6.93147180369123816490e-01, inside);
  r = fma(-k, 1.90821492927058770002e-10, r);
  double p = 1.6059043836821613e-10;  // 1 / 13!
  p = fma(r, p, 2.08767569878681e-09);
  p = fma(r, p, 2.505210838544172e-08);
  p = fma(r, p, 2.755731922398589e-07);
  p = fma(r, p, 2.7557319223985893e-06);
  p = fma(r, p, 2.48015873015873e-05);
  p = fma(r, p, 1.984126984126984e-04);
  p = fma(r, p, 1.388888888888889e-03);
  p = fma(r, p, 8.333333333333333e-03);
  p = fma(r, p, 4.1666666666666664e-02);
  p = fma(r, p, 1.6666666666666666e-01);
  p = fma(r, p, 0.5);
  p = fma(r, p, 1.0);
  p = fma(r, p, 1.0);
  // In two halves: 2^k itself may be out of range even if the result is not.
  int32_t exponent = static_cast<int32_t>(k), half = exponent / 2;
  double first = double_of(static_cast<uint64_t>(static_cast<int64_t>(half + 1023)) << 52);
  double second =
      double_of(static_cast<uint64_t>(static_cast<int64_t>(exponent - half + 1023)) << 52);
  double value = p * first * second;
  return x != x ? x : value;
}

struct SineCosine {
  double sine, cosine;
};

/// Sine and cosine of 2 pi turn, for turn in [0, 1].
FLOW_HD SineCosine exact_turn(double turn) {
  double quarters = floor(fma(4.0, turn, 0.5));
  double x = fma(-0.25, quarters, turn) * 6.28318530717958647693;  // the difference is exact
  double z = x * x;
  double s = fma(z, 1.58969099521155010221e-10, -2.50507602534068634195e-08);
  s = fma(z, s, 2.75573137070700676789e-06);
  s = fma(z, s, -1.98412698298579493134e-04);
  s = fma(z, s, 8.33333333332248946124e-03);
  s = fma(z, s, -1.66666666666666324348e-01);
  double sine = fma(z * x, s, x);
  double c = fma(z, -1.13596475577881948265e-11, 2.08757232129817482790e-09);
  c = fma(z, c, -2.75573143513906633035e-07);
  c = fma(z, c, 2.48015872894767294178e-05);
  c = fma(z, c, -1.38888888888741095749e-03);
  c = fma(z, c, 4.16666666666666019037e-02);
  double near = fma(-0.5, z, 1.0);
  double cosine = near + fma(z * z, c, fma(-0.5, z, 1 - near));
  int32_t quarter = static_cast<int32_t>(quarters);
  double first = quarter & 1 ? cosine : sine, second = quarter & 1 ? sine : cosine;
  return {quarter & 2 ? -first : first, (quarter + 1) & 2 ? -second : second};
}

struct NormalPair {
  double first, second;  // numbers 2i and 2i + 1
};

/// The upper 53 of 64 bits, exactly. Two 32-bit conversions, because AVX2 has no 64-bit one.
FLOW_HD double upper_53(uint32_t low, uint32_t high) {
  double upper = static_cast<int32_t>(high >> 6);
  double lower = static_cast<int32_t>((high & 63) << 21 | low >> 11);
  return fma(upper, 0x1p27, lower);
}

/// The pair of standard normal numbers of 128 bits.
FLOW_HD NormalPair normal_pair(Random4 bits) {
  // Half a step up: never 0.
  double open = (upper_53(bits.word[0], bits.word[1]) + 0.5) * 0x1p-53;
  double turn = upper_53(bits.word[2], bits.word[3]) * 0x1p-53;
  double radius = sqrt(-2 * exact_log(open));
  SineCosine at = exact_turn(turn);
  return {radius * at.cosine, radius * at.sine};
}
FLOW_HD NormalPair normal_pair(uint64_t seed, uint64_t pair, RandomUse use = RandomUse::normal) {
  return normal_pair(random_block(seed, pair, use));
}

/// Standard normal number i of a seed.
FLOW_HD double normal_double(uint64_t seed, uint64_t i, RandomUse use = RandomUse::normal) {
  NormalPair pair = normal_pair(seed, i / 2, use);
  return i % 2 == 0 ? pair.first : pair.second;
}

/// With a mean and a deviation, before rounding to the element's type.
FLOW_HD double normal_scaled(double number, double mean, double deviation) {
  return fma(deviation, number, mean);
}

}  // namespace flow::kernels
