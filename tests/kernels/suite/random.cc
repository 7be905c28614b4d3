// Random numbers by position, against the shared functions one number at a time.
#include "kernels/shared/gbm.hpp"
#include "kernels/shared/normal.hpp"
#include "kernels/shared/scalar.hpp"
#include "tests/kernels/suite/suite.hpp"

namespace flow::suite {
namespace {

__extension__ typedef unsigned __int128 Wide;

double unit(DType dtype, uint64_t seed, uint64_t i) {
  return dtype == DType::f64 ? uniform_double(seed, i)
                             : static_cast<double>(uniform_float(seed, i));
}

void check_one(Suite& s, int64_t count, Layout layout) {
  uint64_t seed = s.random(), first = static_cast<uint64_t>(s.integer(0, 9));
  if (s.integer(0, 3) == 0) first += uint64_t{1} << 33;
  auto number = [&](int64_t i) { return first + static_cast<uint64_t>(i); };
  for (DType dtype : kFloats) {
    Array out(dtype, {count}, layout);
    std::vector<double> uniforms, normals;
    for (int64_t i = 0; i < count; i++) {
      uniforms.push_back(visit_float(dtype, [&](auto type) {
        using T = decltype(type);
        return convert<double>(
            uniform_between<T>(unit(dtype, seed, number(i)), -1, 2, next_below(convert<T>(2.0))));
      }));
      normals.push_back(normal_scaled(normal_double(seed, number(i)), 0.5, 3));
    }
    std::string what = std::string(dtype_name(dtype)) + " " + std::to_string(count);
    s.check("uniform", &Kernels::uniform, what, {&out},
            [&](const Kernels& k, Stream& stream, Views v) {
              return k.uniform(stream, v[0], seed, first, -1, 2);
            },
            {{&out, uniforms, {}, -1}});
    s.check("normal", &Kernels::normal, what, {&out},
            [&](const Kernels& k, Stream& stream, Views v) {
              return k.normal(stream, v[0], seed, first, 0.5, 3);
            },
            {{&out, normals, {}, 4}});
  }
  for (DType dtype : {DType::i64, DType::i32, DType::u8}) {
    Array out(dtype, {count}, layout);
    int64_t low = dtype == DType::u8 ? 3 : -5, high = dtype == DType::i64 ? INT64_MAX - 7 : 200;
    std::vector<int64_t> want;
    for (int64_t i = 0; i < count; i++) {
      Random4 block = random_block(seed, number(i) / 2, RandomUse::integers);
      auto at = static_cast<size_t>(number(i) % 2 * 2);
      uint64_t span = static_cast<uint64_t>(high) - static_cast<uint64_t>(low) + 1;
      auto pick = static_cast<uint64_t>(
          (static_cast<Wide>(join(block.word[at], block.word[at + 1])) * span) >> 64);
      want.push_back(static_cast<int64_t>(static_cast<uint64_t>(low) + pick));
    }
    s.check("integers", &Kernels::integers, dtype_name(dtype), {&out},
            [&](const Kernels& k, Stream& stream, Views v) {
              return k.integers(stream, v[0], seed, first, low, high);
            },
            {{&out, {}, want, 0}});
  }
  for (DType dtype : kAllTypes) {
    Array out(dtype, {count}, layout);
    std::vector<double> want;
    for (int64_t i = 0; i < count; i++)
      want.push_back(static_cast<double>(uniform_float(seed, number(i))) < 0.3);
    s.check("bernoulli", &Kernels::bernoulli, dtype_name(dtype), {&out},
            [&](const Kernels& k, Stream& stream, Views v) {
              return k.bernoulli(stream, v[0], seed, first, 0.3);
            },
            {{&out, want, {}, 0}});
  }
}

void check_gbm(Suite& s, DType dtype, int64_t paths, int64_t steps) {
  Gbm gbm{100, 0.05, 0.2, 1, steps, s.random(), s.integer(0, 5)};
  Array all(dtype, {paths, steps + 1}), ends(dtype, {paths});
  std::vector<double> want, last;
  GbmStep step = gbm_step(gbm.rate, gbm.volatility, gbm.years, steps);
  for (int64_t path = 0; path < paths; path++) {
    double logarithm = 0;
    want.push_back(gbm.start);
    for (int64_t i = 0; i < steps; i++) {
      uint64_t number = gbm_number(static_cast<uint64_t>(gbm.first_path + path),
                                   static_cast<uint64_t>(steps), static_cast<uint64_t>(i));
      logarithm = gbm_add(logarithm, step, gbm_normal(gbm.seed, number));
      want.push_back(gbm_price(gbm.start, logarithm));
    }
    last.push_back(want.back());
  }
  std::string what = std::string(dtype_name(dtype)) + " " + text_of(all.shape());
  s.check("gbm_paths", &Kernels::gbm_paths, what, {&all},
          [&](const Kernels& k, Stream& stream, Views v) { return k.gbm_paths(stream, gbm, v[0]); },
          {{&all, want, {}, 2}});
  s.check("gbm_ends", &Kernels::gbm_ends, what, {&ends},
          [&](const Kernels& k, Stream& stream, Views v) { return k.gbm_ends(stream, gbm, v[0]); },
          {{&ends, last, {}, 2}});
}

}  // namespace

void check_random(Suite& s) {
  for (int64_t count : {0, 1, 5, 64, 1003})
    for (Layout layout : {Layout::dense, Layout::shifted}) check_one(s, count, layout);
}

void check_finance(Suite& s) {
  for (DType dtype : {DType::f32, DType::f64})
    for (int64_t paths : {0, 1, 31, 140})
      for (int64_t steps : {1, 5, 31, 32, 70}) check_gbm(s, dtype, paths, steps);
}

}  // namespace flow::suite
