// Random numbers by counting: Philox 4x32-10.
#include "kernels/cpu/random.hpp"

#include <cmath>
#include <numbers>
#include <utility>

#include "flow/result.hpp"

namespace flow::cpu {
namespace {

__extension__ typedef unsigned __int128 Wide;

constexpr uint32_t kMultiply0 = 0xD2511F53, kMultiply1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

// Streams keep the uses of one seed apart.
enum Stream : uint32_t { kUniform, kNormal, kPermutation };

std::array<uint32_t, 4> block(uint64_t seed, uint64_t index, Stream stream) {
  return philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), stream, 0},
                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

uint64_t join(uint32_t low, uint32_t high) { return (uint64_t{high} << 32) | low; }

template <typename T>
void uniform_of(const View& out, uint64_t seed, double low, double high) {
  constexpr bool wide = sizeof(T) == 8;
  constexpr int64_t per_block = wide ? 2 : 4;
  T* to = out.at<T>();
  for (int64_t i = 0; i < out.count(); i += per_block) {
    auto bits = block(seed, static_cast<uint64_t>(i / per_block), kUniform);
    for (int64_t j = 0; j < per_block && i + j < out.count(); j++) {
      double unit =
          wide ? static_cast<double>(join(bits[2 * j % 4], bits[(2 * j + 1) % 4]) >> 11) * 0x1p-53
               : static_cast<double>(bits[j] >> 8) * 0x1p-24;
      T value = static_cast<T>(low + (high - low) * unit);
      // Rounding to T may reach the end that is not part of the range.
      to[i + j] = value < static_cast<T>(high) || low >= high
                      ? value
                      : std::nextafter(value, static_cast<T>(low));
    }
  }
}

template <typename T>
void normal_of(const View& out, uint64_t seed, double mean, double deviation) {
  T* to = out.at<T>();
  for (int64_t i = 0; i < out.count(); i += 2) {
    auto bits = block(seed, static_cast<uint64_t>(i / 2), kNormal);
    double open = (static_cast<double>(join(bits[0], bits[1]) >> 11) + 0.5) * 0x1p-53;  // never 0
    double turn = static_cast<double>(join(bits[2], bits[3]) >> 11) * 0x1p-53;
    double radius = std::sqrt(-2 * std::log(open)), angle = 2 * std::numbers::pi * turn;
    to[i] = static_cast<T>(mean + deviation * radius * std::cos(angle));
    if (i + 1 < out.count())
      to[i + 1] = static_cast<T>(mean + deviation * radius * std::sin(angle));
  }
}

}  // namespace

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; round++) {
    uint64_t product0 = uint64_t{kMultiply0} * counter[0];
    uint64_t product1 = uint64_t{kMultiply1} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

void fill_uniform(const View& out, uint64_t seed, double low, double high) {
  FLOW_CHECK(is_dense(out));
  if (out.dtype == DType::f64) return uniform_of<double>(out, seed, low, high);
  FLOW_CHECK(out.dtype == DType::f32);
  uniform_of<float>(out, seed, low, high);
}

void fill_normal(const View& out, uint64_t seed, double mean, double deviation) {
  FLOW_CHECK(is_dense(out));
  if (out.dtype == DType::f64) return normal_of<double>(out, seed, mean, deviation);
  FLOW_CHECK(out.dtype == DType::f32);
  normal_of<float>(out, seed, mean, deviation);
}

void permutation(int64_t* out, int64_t count, uint64_t seed) {
  for (int64_t i = 0; i < count; i++) out[i] = i;
  for (int64_t i = count - 1; i > 0; i--) {
    auto bits = block(seed, static_cast<uint64_t>(i), kPermutation);
    // The upper half of a 64 by 64 bit product: a number below i + 1, evenly but for 2^-64.
    auto pick = static_cast<int64_t>(
        (static_cast<Wide>(join(bits[0], bits[1])) * static_cast<uint64_t>(i + 1)) >> 64);
    std::swap(out[i], out[pick]);
  }
}

}  // namespace flow::cpu
