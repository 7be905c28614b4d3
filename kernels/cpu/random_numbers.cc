// Random numbers: each is a function of the seed and its position, so that the split of the work
// does not matter.
#include <algorithm>

#include "kernels/cpu/elementwise.hpp"
#include "kernels/shared/scalar.hpp"

namespace flow::cpu {
namespace {

// Calls f(first, count, destination) for chunks of a dense view.
template <typename F>
int for_numbers(Stream& stream, const View& out, F f) {
  auto size = static_cast<int64_t>(dtype_size(out.dtype));
  parallel_for(stream.threads, out.count(), kGrainCostly, [&](int64_t first, int64_t last) {
    for (int64_t at = first; at < last; at += kChunk)
      f(static_cast<uint64_t>(at), std::min(kChunk, last - at), out.data + at * size);
  });
  return kDone;
}

int uniform(Stream& stream, const View& out, Seed seed, uint64_t first, double low, double high) {
  if (!is_float(out.dtype)) return kUnsupported;
  const Loops& use = loops();
  int type = out.dtype == DType::f32   ? 0
             : out.dtype == DType::f64 ? 1
             : out.dtype == DType::f16 ? 2
                                       : 3;
  return for_numbers(stream, out, [&](uint64_t at, int64_t count, char* to) {
    alignas(64) char units[kChunk * 8];
    if (type == 1) {
      use.units_f64(seed.value, first + at, RandomUse::uniform, reinterpret_cast<double*>(units),
                    count);
    } else {
      use.units_f32(seed.value, first + at, RandomUse::uniform, reinterpret_cast<float*>(units),
                    count);
    }
    use.between[type](units, low, high, to, count);
  });
}

int normal(Stream& stream, const View& out, Seed seed, uint64_t first, double mean,
           double deviation) {
  if (!is_float(out.dtype)) return kUnsupported;
  const Loops& use = loops();
  return for_numbers(stream, out, [&](uint64_t at, int64_t count, char* to) {
    alignas(64) double numbers[kChunk];
    use.normals(seed.value, first + at, RandomUse::normal, numbers, count);
    use.scale_normals(numbers, mean, deviation, count);
    if (out.dtype == DType::f64) {
      store_converted(out.dtype, numbers, to, 1, count);
    } else {
      alignas(64) float narrow[kChunk];
      use.convert[kF64][kF32](numbers, narrow, count);
      store_converted(out.dtype, narrow, to, 1, count);
    }
  });
}

int integers(Stream& stream, const View& out, Seed seed, uint64_t first, int64_t low,
             int64_t high) {
  if (!is_integer(out.dtype)) return kUnsupported;
  uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low) + 1;
  return visit(out.dtype, [&](auto type) {
    using T = decltype(type);
    return for_numbers(stream, out, [&](uint64_t at, int64_t count, char* to) {
      for (int64_t i = 0; i < count; i++)
        reinterpret_cast<T*>(to)[i] = convert<T>(
            random_integer(seed.value, first + at + static_cast<uint64_t>(i), low, range));
    });
  });
}

int bernoulli(Stream& stream, const View& out, Seed seed, uint64_t first, double p) {
  return visit(out.dtype, [&](auto type) {
    using T = decltype(type);
    return for_numbers(stream, out, [&](uint64_t at, int64_t count, char* to) {
      float units[kChunk];
      loops().units_f32(seed.value, first + at, RandomUse::uniform, units, count);
      for (int64_t i = 0; i < count; i++)
        reinterpret_cast<T*>(to)[i] = convert<T>(uint8_t{static_cast<double>(units[i]) < p});
    });
  });
}

}  // namespace

void add_random_rows(Kernels& table) {
  table.uniform = uniform;
  table.normal = normal;
  table.integers = integers;
  table.bernoulli = bernoulli;
}

}  // namespace flow::cpu
