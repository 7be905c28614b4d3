// Random numbers by counting: Philox 4x32-10 (Salmon et al., 2011). Element i of a seed is always
// the same number, whoever computes it.
#pragma once
#include <array>
#include <cstdint>

#include "kernels/shared/view.hpp"

namespace flow::cpu {

using namespace kernels;

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// Dense f32 or f64: uniform in [low, high), or normal by Box and Muller.
void fill_uniform(const View& out, uint64_t seed, double low, double high);
void fill_normal(const View& out, uint64_t seed, double mean, double deviation);
/// out[0..count) = a permutation of 0..count-1 (Fisher and Yates).
void permutation(int64_t* out, int64_t count, uint64_t seed);

}  // namespace flow::cpu
