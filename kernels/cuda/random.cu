// Random numbers by position: each thread computes one Philox block and its numbers.
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launchers.hpp"
#include "kernels/shared/normal.hpp"

namespace flow::cuda {
namespace {

// F::make(seed, block, numbers) computes F::numbers of them, of type T.
template <typename T, typename F>
__global__ void __launch_bounds__(kBlockThreads)
    numbers_kernel(F f, Seed seed, uint64_t first, int64_t count, T* out) {
  constexpr int each = F::numbers;
  uint64_t own_seed = seed.number();
  uint64_t first_block = first / each;
  auto skip = static_cast<int64_t>(first % each);
  int64_t blocks = divide_up(count + skip, each);
  bool packs = skip == 0 && reinterpret_cast<uintptr_t>(out) % (sizeof(T) * each) == 0;
  for (int64_t i = thread_of_grid(); i < blocks; i += threads_of_grid()) {
    T numbers[each];
    f.make(own_seed, first_block + static_cast<uint64_t>(i), numbers);
    int64_t at = i * each - skip;
    if (packs && at + each <= count) {
      store<each>(out + at, numbers);
      continue;
    }
    for (int j = 0; j < each; j++)
      if (at + j >= 0 && at + j < count) out[at + j] = numbers[j];
  }
}

template <typename T, typename F>
int launch_numbers(Stream& stream, F f, const View& out, Seed seed, uint64_t first) {
  if (out.count() == 0) return kDone;
  int64_t blocks = out.count() / F::numbers + 2;
  return launch(stream, numbers_kernel<T, F>, grid_of(blocks_for(blocks)), kBlockThreads, 0, f,
                seed, first, out.count(), out.at<T>());
}

template <typename T>
struct Uniform {
  static constexpr int numbers = std::is_same_v<T, double> ? 2 : 4;
  double low, high;
  T below;

  FLOW_DEVICE void make(uint64_t seed, uint64_t block, T (&to)[numbers]) const {
    Random4 bits = random_block(seed, block, RandomUse::uniform);
    for (int j = 0; j < numbers; j++) {
      double unit = numbers == 4 ? static_cast<double>(unit_float(bits.word[j]))
                                 : unit_double(bits.word[j * 2 % 4], bits.word[j * 2 % 4 + 1]);
      to[j] = uniform_between<T>(unit, low, high, below);
    }
  }
};

template <typename T>
struct Normal {
  static constexpr int numbers = 2;
  double mean, deviation;

  FLOW_DEVICE void make(uint64_t seed, uint64_t block, T (&to)[2]) const {
    NormalPair pair = normal_pair(seed, block);
    to[0] = convert<T>(normal_scaled(pair.first, mean, deviation));
    to[1] = convert<T>(normal_scaled(pair.second, mean, deviation));
  }
};

template <typename T>
struct Integers {
  static constexpr int numbers = 2;
  int64_t low;
  uint64_t span;  // 0: all 2^64

  FLOW_DEVICE void make(uint64_t seed, uint64_t block, T (&to)[2]) const {
    Random4 bits = random_block(seed, block, RandomUse::integers);
    for (int j = 0; j < 2; j++) {
      uint64_t number = join(bits.word[2 * j], bits.word[2 * j + 1]);
      if (span != 0) number = multiply_high(number, span);
      to[j] = static_cast<T>(static_cast<uint64_t>(low) + number);
    }
  }
};

template <typename T>
struct Bernoulli {
  static constexpr int numbers = 4;
  double p;
  T one, zero;

  FLOW_DEVICE void make(uint64_t seed, uint64_t block, T (&to)[4]) const {
    Random4 bits = random_block(seed, block, RandomUse::uniform);
    for (int j = 0; j < 4; j++)
      to[j] = static_cast<double>(unit_float(bits.word[j])) < p ? one : zero;
  }
};

}  // namespace

int uniform(Stream& stream, const View& out, Seed seed, uint64_t first, double low, double high) {
  return visit_floats(out.dtype, [&](auto type) {
    using T = decltype(type);
    Uniform<T> f{low, high, next_below(convert<T>(high))};
    return launch_numbers<T>(stream, f, out, seed, first);
  });
}

int normal(Stream& stream, const View& out, Seed seed, uint64_t first, double mean,
           double deviation) {
  return visit_floats(out.dtype, [&](auto type) {
    using T = decltype(type);
    return launch_numbers<T>(stream, Normal<T>{mean, deviation}, out, seed, first);
  });
}

int integers(Stream& stream, const View& out, Seed seed, uint64_t first, int64_t low,
             int64_t high) {
  uint64_t span = static_cast<uint64_t>(high) - static_cast<uint64_t>(low) + 1;
  switch (out.dtype) {
    case DType::i64:
      return launch_numbers<int64_t>(stream, Integers<int64_t>{low, span}, out, seed, first);
    case DType::i32:
      return launch_numbers<int32_t>(stream, Integers<int32_t>{low, span}, out, seed, first);
    case DType::u8:
      return launch_numbers<uint8_t>(stream, Integers<uint8_t>{low, span}, out, seed, first);
    default:
      return kUnsupported;
  }
}

int bernoulli(Stream& stream, const View& out, Seed seed, uint64_t first, double p) {
  return visit(out.dtype, [&](auto type) {
    using T = decltype(type);
    Bernoulli<T> f{p, convert<T>(uint8_t{1}), convert<T>(uint8_t{0})};
    return launch_numbers<T>(stream, f, out, seed, first);
  });
}

}  // namespace flow::cuda
