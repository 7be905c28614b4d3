// Random numbers by position, many blocks at a time. The same bits at every level.
#include <cstdint>

#include "kernels/cpu/loops/all.hpp"
#include "kernels/cpu/loops/math.hpp"
#include "kernels/shared/gbm.hpp"
#include "kernels/shared/scalar.hpp"

namespace flow::cpu::FLOW_ISA {
namespace {

using namespace kernels;

constexpr int64_t kBlocks = 64;

// Words of blocks first, first + 1, …, one array per word.
struct Words {
  uint32_t of[4][kBlocks];
};

void make_blocks(uint64_t seed, uint64_t first, RandomUse use, Words& words) {
#pragma omp simd
  for (int64_t i = 0; i < kBlocks; i++) {
    Random4 block = random_block(seed, first + static_cast<uint64_t>(i), use);
    words.of[0][i] = block.word[0];
    words.of[1][i] = block.word[1];
    words.of[2][i] = block.word[2];
    words.of[3][i] = block.word[3];
  }
}

// Calls make(words, numbers) for each range of blocks, with `each` numbers per block, and copies
// those from `first` on.
template <int64_t each, typename T, typename Make>
FLOW_HD void numbers(uint64_t seed, uint64_t first, RandomUse use, T* out, int64_t count,
                     Make make) {
  Words words;
  T chunk[kBlocks * each];
  uint64_t block = first / each;
  int64_t skip = static_cast<int64_t>(first % each);
  for (int64_t at = 0; at < count; block += kBlocks) {
    make_blocks(seed, block, use, words);
    int64_t length = kBlocks * each - skip < count - at ? kBlocks * each - skip : count - at;
    make(words, chunk);
    for (int64_t i = 0; i < length; i++) out[at + i] = chunk[skip + i];
    at += length;
    skip = 0;
  }
}

void normals_run(uint64_t seed, uint64_t first, RandomUse use, double* out, int64_t count) {
  numbers<2>(
      seed, first, use, out, count,
      [](const Words& words, double* chunk) __attribute__((always_inline)) {
        double firsts[kBlocks], seconds[kBlocks];
#pragma omp simd
        for (int64_t i = 0; i < kBlocks; i++) {
          NormalPair pair = normal_pair(
              Random4{{words.of[0][i], words.of[1][i], words.of[2][i], words.of[3][i]}});
          firsts[i] = pair.first;
          seconds[i] = pair.second;
        }
        for (int64_t i = 0; i < kBlocks; i++) {
          chunk[2 * i] = firsts[i];
          chunk[2 * i + 1] = seconds[i];
        }
      });
}

template <typename T, typename Unit>
void between_run(const void* numbers, double low, double high, void* to, int64_t count) {
  const Unit* units = static_cast<const Unit*>(numbers);
  T *out = static_cast<T*>(to), below = next_below(convert<T>(high));
  for (int64_t i = 0; i < count; i++)
    out[i] = uniform_between(static_cast<double>(units[i]), low, high, below);
}

void scale_normals_run(double* values, double mean, double deviation, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) values[i] = normal_scaled(values[i], mean, deviation);
}

double path_steps_run(double* values, double drift, double diffusion, double logarithm,
                      int64_t count) {
  GbmStep step{drift, diffusion};
  for (int64_t i = 0; i < count; i++) values[i] = logarithm = gbm_add(logarithm, step, values[i]);
  return logarithm;
}

void prices_run(const double* logarithms, double start, double* out, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++) out[i] = gbm_price(start, logarithms[i]);
}

}  // namespace

void units_float(uint64_t seed, uint64_t first, RandomUse use, float* out, int64_t count) {
  numbers<4>(
      seed, first, use, out, count,
      [](const Words& words, float* chunk) __attribute__((always_inline)) {
        for (int64_t i = 0; i < kBlocks; i++) {
          chunk[4 * i] = unit_float(words.of[0][i]);
          chunk[4 * i + 1] = unit_float(words.of[1][i]);
          chunk[4 * i + 2] = unit_float(words.of[2][i]);
          chunk[4 * i + 3] = unit_float(words.of[3][i]);
        }
      });
}

void units_double(uint64_t seed, uint64_t first, RandomUse use, double* out, int64_t count) {
  numbers<2>(
      seed, first, use, out, count,
      [](const Words& words, double* chunk) __attribute__((always_inline)) {
        for (int64_t i = 0; i < kBlocks; i++) {
          chunk[2 * i] = unit_double(words.of[0][i], words.of[1][i]);
          chunk[2 * i + 1] = unit_double(words.of[2][i], words.of[3][i]);
        }
      });
}

void fill_random(Loops& loops) {
  loops.units_f32 = units_float;
  loops.units_f64 = units_double;
  loops.normals = normals_run;
  loops.between[0] = between_run<float, float>;
  loops.between[1] = between_run<double, double>;
  loops.between[2] = between_run<Half, float>;
  loops.between[3] = between_run<Brain, float>;
  loops.scale_normals = scale_normals_run;
  loops.path_steps = path_steps_run;
  loops.prices = prices_run;
}

}  // namespace flow::cpu::FLOW_ISA
