// Counter-based random numbers, the same on host and device: Philox 4x32-10 (Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3", 2011). A number depends only on the seed, its
// index, its use and its type.
#pragma once
#include <cstdint>

#include "kernels/shared/hd.hpp"

namespace flow::kernels {

struct Random4 {
  uint32_t word[4];
};

/// The 128 random bits of a counter and a key.
FLOW_HD Random4 philox(Random4 counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; round++) {
    uint64_t product0 = uint64_t{0xD2511F53} * counter.word[0];
    uint64_t product1 = uint64_t{0xCD9E8D57} * counter.word[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0,
                static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1,
                static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

/// Each use of a seed has numbers that are independent of the others'. `gbm`: geometric Brownian
/// motion.
enum class RandomUse : uint32_t { uniform, normal, permutation, integers, dropout, sample, gbm };

/// Block number `position` of the seed's numbers: 128 bits.
FLOW_HD Random4 random_block(uint64_t seed, uint64_t position, RandomUse use) {
  return philox({{static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                  static_cast<uint32_t>(use), 0}},
                static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

FLOW_HD uint64_t join(uint32_t low, uint32_t high) { return (uint64_t{high} << 32) | low; }

/// Numbers in [0, 1): a float from 24 bits, a double from 53.
FLOW_HD float unit_float(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }
FLOW_HD double unit_double(uint32_t low, uint32_t high) {
  return static_cast<double>(join(low, high) >> 11) * 0x1p-53;
}

/// Uniform number i of a seed: four floats, or two doubles, per block.
FLOW_HD float uniform_float(uint64_t seed, uint64_t i, RandomUse use = RandomUse::uniform) {
  return unit_float(random_block(seed, i / 4, use).word[i % 4]);
}
FLOW_HD double uniform_double(uint64_t seed, uint64_t i, RandomUse use = RandomUse::uniform) {
  Random4 block = random_block(seed, i / 2, use);
  return unit_double(block.word[i % 2 * 2], block.word[i % 2 * 2 + 1]);
}

}  // namespace flow::kernels
