// Functions of one float without branches, so that loops over them vectorize. Within about 2 ulp
// everywhere, and exact at 0, infinities and NaN. The polynomials are Moshier's (Cephes) and
// Juffa's (erf). For doubles libm is used.
#pragma once
#include <cstdint>

#include "kernels/cpu/loops/isa.hpp"
#include "kernels/shared/hd.hpp"

namespace flow::cpu::FLOW_ISA {

FLOW_HD uint32_t bits_of_float(float value) {
  uint32_t raw;
  __builtin_memcpy(&raw, &value, sizeof raw);
  return raw;
}
FLOW_HD float float_of_bits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}
/// 2^k for k from -126 to 127.
FLOW_HD float power_of_two(int32_t k) {
  return float_of_bits(static_cast<uint32_t>(k + 127) << 23);
}

constexpr float kInfinity = __builtin_inff();
constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer

FLOW_HD float abs(float x) { return __builtin_fabsf(x); }
FLOW_HD double abs(double x) { return __builtin_fabs(x); }
FLOW_HD float with_sign(float x, float sign) { return __builtin_copysignf(x, sign); }

/// (exp(r) - 1 - r) / r² for |r| <= ln(2) / 2.
FLOW_HD float exp_tail(float r) {
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p;
}

FLOW_HD float exp(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  float shifted = x * 1.44269504088896341f + kRounder;
  float k = shifted - kRounder;
  float r = x - k * 0.693359375f;
  r = r - k * -2.12194440e-4f;
  float p = exp_tail(r) * (r * r) + r + 1.0f;
  int32_t whole = static_cast<int32_t>(bits_of_float(shifted) - bits_of_float(kRounder));
  int32_t half = whole >> 1;  // in two steps: 2^k itself may be out of range
  return p * power_of_two(half) * power_of_two(whole - half);
}
FLOW_HD double exp(double x) { return __builtin_exp(x); }

/// exp(x) for x <= 0; may be 0 instead of a subnormal result.
FLOW_HD float exp_of_negative(float x) {
  x = x < -87.0f ? -87.5f : x;
  float shifted = x * 1.44269504088896341f + kRounder;
  float k = shifted - kRounder;
  float r = x - k * 0.693359375f;
  r = r - k * -2.12194440e-4f;
  float p = exp_tail(r) * (r * r) + r + 1.0f;
  // Multiplies by 2^k: the bits of k, shifted from the rounder's low bits, are added to the
  // exponent.
  float value = float_of_bits(bits_of_float(p) + (bits_of_float(shifted) << 23));
  value = x < -87.0f ? 0.0f : value;
  return x != x ? x : value;
}
FLOW_HD double exp_of_negative(double x) { return __builtin_exp(x); }

FLOW_HD float expm1(float x) {
  x = x < -20.0f ? -20.0f : x;
  x = x > 89.0f ? 89.0f : x;
  float shifted = x * 1.44269504088896341f + kRounder;
  float k = shifted - kRounder;
  float r = x - k * 0.693359375f;
  r = r - k * -2.12194440e-4f;
  float p = exp_tail(r) * (r * r) + r;
  int32_t whole = static_cast<int32_t>(bits_of_float(shifted) - bits_of_float(kRounder));
  float half = power_of_two(whole - 1);
  float value = (half * p + (half - 0.5f)) * 2.0f;
  return whole == 0 ? p : value;
}
FLOW_HD double expm1(double x) { return __builtin_expm1(x); }

FLOW_HD float log(float x) {
  bool tiny = x < 1.17549435e-38f;
  float scaled = tiny ? x * 8388608.0f : x;
  uint32_t bits = bits_of_float(scaled) - 0x3f3504f3u;  // of sqrt(1/2)
  int32_t exponent = static_cast<int32_t>(bits) >> 23;
  float f = float_of_bits((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  float k = static_cast<float>(exponent - (tiny ? 23 : 0));
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  float square = f * f;
  float tail = p * (f * square) + k * -2.12194440e-4f;
  tail = tail - 0.5f * square;
  float value = f + tail;
  value = value + k * 0.693359375f;
  value = x == 0.0f ? -kInfinity : value;
  value = x == kInfinity ? kInfinity : value;
  return x >= 0.0f ? value : __builtin_nanf("");
}
FLOW_HD double log(double x) { return __builtin_log(x); }

FLOW_HD float log1p(float x) {
  float sum = 1.0f + x, back = sum - 1.0f;
  // Kahan: the division removes the error of the sum.
  float value = log(sum) * (x / back);
  value = back == 0.0f ? x : value;
  return x == kInfinity ? kInfinity : value;
}
FLOW_HD double log1p(double x) { return __builtin_log1p(x); }

FLOW_HD float tanh(float x) {
  float size = abs(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  float small = p * (z * x) + x;
  float clipped = size > 10.0f ? 10.0f : size;  // the result is 1 there
  float large = 1.0f - 2.0f / (exp(clipped + clipped) + 1.0f);
  return size < 0.625f ? small : with_sign(large, x);
}
FLOW_HD double tanh(double x) { return __builtin_tanh(x); }

FLOW_HD float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
FLOW_HD double sigmoid(double x) { return 1.0 / (1.0 + __builtin_exp(-x)); }

FLOW_HD float erf(float x) {
  float t = abs(x), s = x * x;
  float r = -1.72853470e-5f * t + 3.83197126e-4f;
  float u = -3.88396438e-3f * t + 2.42546219e-2f;
  r = r * s + u;
  r = r * t - 1.06777877e-1f;
  r = r * t - 6.34846687e-1f;
  r = r * t - 1.28717512e-1f;
  r = r * t - t;
  float large = with_sign(1.0f - exp_of_negative(r), x);
  float p = -5.96761703e-4f;
  p = p * s + 4.99119423e-3f;
  p = p * s - 2.67681349e-2f;
  p = p * s + 1.12819925e-1f;
  p = p * s - 3.76125336e-1f;
  p = p * s + 1.28379166e-1f;
  float small = p * x + x;
  float value = t > 0.927734375f ? large : small;
  return t > 4.0f ? with_sign(1.0f, x) : value;
}
FLOW_HD double erf(double x) { return __builtin_erf(x); }

/// Beyond this, sine and cosine use libm.
constexpr float kTurnsMax = 1e5f;

// In double: the reduction keeps all bits, and the polynomials need few terms.
FLOW_HD float sine_of_quarters(float x, int32_t more) {
  double wide = x;
  double shifted = wide * 0.63661977236758134308 + 6755399441055744.0;
  double k = shifted - 6755399441055744.0;
  double r = wide - k * 1.57079632673412561417;  // 33 bits of pi / 2
  r = r - k * 6.07710050650619224932e-11;
  uint64_t raw;
  __builtin_memcpy(&raw, &shifted, sizeof raw);
  uint64_t quarter = raw + static_cast<uint64_t>(static_cast<int64_t>(more));
  double z = r * r;
  double s = 2.7183114939898219e-6;
  s = s * z - 1.9839334836096632e-4;
  s = s * z + 8.3333293858894632e-3;
  s = s * z - 1.6666666641626524e-1;
  double sine = s * (z * r) + r;
  double c = -2.7234900160e-7;
  c = c * z + 2.4800965730e-5;
  c = c * z - 1.3888886570e-3;
  c = c * z + 4.1666666641e-2;
  c = c * z - 0.5;
  double cosine = c * z + 1.0;
  double value = quarter & 1 ? cosine : sine;
  value = quarter & 2 ? -value : value;
  return static_cast<float>(value);
}
FLOW_HD float sin(float x) { return sine_of_quarters(x, 0); }
FLOW_HD float cos(float x) { return sine_of_quarters(x, 1); }
FLOW_HD double sin(double x) { return __builtin_sin(x); }
FLOW_HD double cos(double x) { return __builtin_cos(x); }

FLOW_HD float sqrt(float x) { return __builtin_sqrtf(x); }
FLOW_HD double sqrt(double x) { return __builtin_sqrt(x); }
FLOW_HD float floor(float x) { return __builtin_floorf(x); }
FLOW_HD double floor(double x) { return __builtin_floor(x); }
FLOW_HD float ceil(float x) { return __builtin_ceilf(x); }
FLOW_HD double ceil(double x) { return __builtin_ceil(x); }
FLOW_HD float rint(float x) { return __builtin_rintf(x); }
FLOW_HD double rint(double x) { return __builtin_rint(x); }
FLOW_HD float pow(float a, float b) { return __builtin_powf(a, b); }
FLOW_HD double pow(double a, double b) { return __builtin_pow(a, b); }

/// erf for a factor of x that is added to 1, where the last bits of a small result do not matter:
/// one quotient (Eigen's).
FLOW_HD float rough_erf(float x) {
  x = x < -4.0f ? -4.0f : x;
  x = x > 4.0f ? 4.0f : x;
  float s = x * x;
  float p = -2.72614225801306e-10f;
  p = p * s + 2.77068142495902e-08f;
  p = p * s - 2.10102402082508e-06f;
  p = p * s - 5.69250639462346e-05f;
  p = p * s - 7.34990630326855e-04f;
  p = p * s - 2.95459980854025e-03f;
  p = p * s - 1.60960333262415e-02f;
  float q = -1.45660718464996e-05f;
  q = q * s - 2.13374055278905e-04f;
  q = q * s - 1.68282697438203e-03f;
  q = q * s - 7.37332916720468e-03f;
  q = q * s - 1.42647390514189e-02f;
  return x * p / q;
}
FLOW_HD double rough_erf(double x) { return __builtin_erf(x); }

/// exp(x); may be 0 instead of a subnormal result, and infinity from exp(88) on.
FLOW_HD float rough_exp(float x) {
  float value = exp_of_negative(x > 88.0f ? 88.0f : x);
  return x > 88.0f ? kInfinity : value;
}
FLOW_HD double rough_exp(double x) { return __builtin_exp(x); }

/// Φ(x), and its substitute in gelu_tanh: (1 + tanh(u)) / 2 is sigmoid(2 u).
template <typename T>
FLOW_HD T gelu_part(T x) {
  return T(0.5) + T(0.5) * rough_erf(x * T(0.70710678118654752440));
}
template <typename T>
FLOW_HD T gelu_tanh_part(T x) {
  T u = T(0.79788456080286535588) * x * (T(1) + T(0.044715) * (x * x));
  return T(1) / (T(1) + rough_exp(T(-2) * u));
}

}  // namespace flow::cpu::FLOW_ISA
