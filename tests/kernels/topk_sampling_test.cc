// Indices, top-k and sampling, optimizers, random numbers and price paths against simple loops.
#include <algorithm>
#include <numeric>

#include "kernels/shared/gbm.hpp"
#include "kernels/shared/scalar.hpp"
#include "tests/kernels/tensors.hpp"

namespace flow::kernels {
namespace {

constexpr DType kAll[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                          DType::i64, DType::i32, DType::u8,  DType::boolean};

TEST_CASE("rows and elements are gathered and added by index") {
  Generator random = generator("indices");
  for (DType dtype : kAll) {
    for (DType index_type : {DType::i64, DType::i32}) {
      for (Layout layout : {Layout::dense, Layout::padded, Layout::negative, Layout::narrowed}) {
        for (int64_t count : {0, 6, 500}) {
          constexpr int64_t rows = 11, width = 203;
          Tensor from = random_tensor(random, dtype, {rows, width}, layout),
                 index(index_type, {count / 2, 2});
          for (int64_t i = 0; i < index.count(); i++)
            index.set_whole(i, 1 + static_cast<int64_t>(random() % rows));
          Tensor out(dtype, {count / 2, 2, width}, layout);
          Tensor places(index_type, {rows, 31}), picked(dtype, {rows, 31}, layout);
          for (int64_t i = 0; i < places.count(); i++)
            places.set_whole(i, 1 + static_cast<int64_t>(random() % width));
          Tensor grad = random_tensor(random, dtype, {count / 2, 2, width}, layout),
                 last_grad = random_tensor(random, dtype, {rows, 31}, layout);
          for_setups([&](Runner& runner) {
            out.poison(), picked.poison();
            REQUIRE(table().gather_rows(runner.stream, from.view, index.view, 1, out.view) ==
                    kDone);
            check(
                "gather_rows", out,
                [&](int64_t i) {
                  return from.get((index.whole(i / width) - 1) * width + i % width);
                },
                0);
            REQUIRE(table().gather_last(runner.stream, from.view, places.view, 1, picked.view) ==
                    kDone);
            check(
                "gather_last", picked,
                [&](int64_t i) { return from.get(i / 31 * width + places.whole(i) - 1); }, 0);
            Tensor sums(dtype, {rows, width}, layout);
            sums.fill([&](int64_t i) { return from.get(i); });
            if (!is_float(dtype)) {
              CHECK(table().scatter_add_rows(runner.stream, grad.view, index.view, 1, sums.view) ==
                    kUnsupported);
              return;
            }
            std::vector<double> expected = sums.values(), sizes(expected.size(), 2.0),
                                counts(expected.size());
            for (int64_t i = 0; i < grad.count(); i++) {
              auto at = static_cast<size_t>((index.whole(i / width) - 1) * width + i % width);
              expected[at] += grad.get(i), sizes[at] += std::fabs(grad.get(i)), counts[at]++;
            }
            REQUIRE(runner([&](Stream& s) {
                      return table().scatter_add_rows(s, grad.view, index.view, 1, sums.view);
                    }) == kDone);
            check(
                "scatter_add_rows", sums,
                [&](int64_t i) { return expected[static_cast<size_t>(i)]; },
                dtype == DType::f32 || dtype == DType::f64 ? 8 : 24,
                [&](int64_t i) { return sizes[static_cast<size_t>(i)]; });
            sums.fill([&](int64_t i) { return from.get(i); });
            expected = sums.values();
            for (int64_t i = 0; i < last_grad.count(); i++)
              expected[static_cast<size_t>(i / 31 * width + places.whole(i) - 1)] +=
                  last_grad.get(i);
            REQUIRE(runner([&](Stream& s) {
                      return table().scatter_add_last(s, last_grad.view, places.view, 1, sums.view);
                    }) == kDone);
            check(
                "scatter_add_last", sums,
                [&](int64_t i) { return expected[static_cast<size_t>(i)]; }, 4,
                [](int64_t) { return 4.0; });
          });
        }
      }
    }
  }
}

TEST_CASE("f16 and bf16 values that are added by index are summed in f32 and rounded once") {
  constexpr int64_t count = 5000;
  for (DType dtype : {DType::f16, DType::bf16}) {
    Tensor ones(dtype, {count, 3}), rows(DType::i64, {count}), table_sums(dtype, {4, 3});
    Tensor row(dtype, {2, count}), places(DType::i32, {2, count}), row_sums(dtype, {2, 5});
    ones.fill([](int64_t) { return 1.0; }), row.fill([](int64_t) { return 1.0; });
    for (int64_t i = 0; i < count; i++) rows.set_whole(i, i % 2 == 0 ? 2 : 4);
    for (int64_t i = 0; i < 2 * count; i++) places.set_whole(i, i < count ? 1 : 3);
    auto rounded = [&](double value) {
      return visit(dtype,
                   [&](auto type) { return convert<double>(convert<decltype(type)>(value)); });
    };
    for_setups([&](Runner& runner) {
      table_sums.fill([](int64_t) { return 1.0; }), row_sums.fill([](int64_t) { return 0.0; });
      REQUIRE(runner([&](Stream& s) {
                return table().scatter_add_rows(s, ones.view, rows.view, 1, table_sums.view);
              }) == kDone);
      for (int64_t i = 0; i < table_sums.count(); i++)
        CHECK(table_sums.get(i) == rounded(i / 3 % 2 == 1 ? count / 2 + 1 : 1));
      REQUIRE(runner([&](Stream& s) {
                return table().scatter_add_last(s, row.view, places.view, 1, row_sums.view);
              }) == kDone);
      for (int64_t i = 0; i < row_sums.count(); i++)
        CHECK(row_sums.get(i) == rounded(i == 0 || i == 7 ? count : 0));
    });
  }
}

TEST_CASE("optimizer rows either accept views with gaps or reject them") {
  for (DType dtype : kFloats) {
    for (Layout layout : kLayouts) {
      Generator random = generator("gaps");
      Tensor in = random_tensor(random, dtype, {70, 900}, layout), out(DType::f64, {1});
      double sum = 0;
      for (int64_t i = 0; i < in.count(); i++) sum += in.get(i) * in.get(i);
      for_setups([&](Runner& runner) {
        out.set(0, 0);
        REQUIRE(table().add_sum_of_squares(runner.stream, in.view, out.view) == kDone);
        CHECK(out.get(0) == Approx(sum).epsilon(1e-6));
      });
    }
  }
  Runner runner(1);
  Tensor dense(DType::f32, {8}), gaps(DType::f32, {8}, Layout::narrowed);
  const View* none = nullptr;
  const View views[4] = {dense.view, dense.view, dense.view, dense.view};
  for (int at = 0; at < 4; at++) {
    View v[4] = {views[0], views[1], views[2], views[3]};
    v[at] = gaps.view;
    CHECK(table().adamw(runner.stream, {}, v[0], v[1], 1, v[2], v[3], none) == kUnsupported);
    if (at < 3) CHECK(table().sgd(runner.stream, {}, v[0], v[1], 1, &v[2], none) == kUnsupported);
  }
}

TEST_CASE("a step of several tensors is the step of each, after clipping to a norm") {
  for (DType dtype : {DType::f32, DType::f64}) {
    constexpr int64_t kCounts[] = {3, 0, 700};
    for_setups([&](Runner& runner) {
      std::vector<Tensor> own, other;  // weights, gradients, moments
      for (std::vector<Tensor>* all : {&own, &other})
        for (int64_t count : kCounts)
          for (int part = 0; part < 4; part++) {
            all->emplace_back(dtype, Shape{count});
            all->back().fill([&](int64_t i) { return 0.5 + static_cast<double>(i % 7 + part); });
          }
      std::vector<View> gradients;
      double sum = 0;
      for (size_t i = 0; i < 3; i++) {
        gradients.push_back(own[4 * i + 1].view);
        for (int64_t j = 0; j < kCounts[i]; j++) sum += std::pow(own[4 * i + 1].get(j), 2);
      }
      Tensor norm(DType::f64, {2});
      View factor = select(norm.view, 0, 1);
      REQUIRE(runner([&](Stream& s) {
                return table().norm_of_all(s, gradients.data(), 3, 2, norm.view);
              }) == kDone);
      check(
          "norm_of_all", norm,
          [&](int64_t i) { return i == 0 ? std::sqrt(sum) : 2 / (std::sqrt(sum) + 1e-6); }, 1e9);
      AdamW options;
      std::vector<AdamWTensor> tensors;
      for (size_t i = 0; i < 3; i++) {
        View* at[] = {&own[4 * i].view, &own[4 * i + 1].view, &own[4 * i + 2].view,
                      &own[4 * i + 3].view};
        tensors.push_back({*at[0], *at[1], *at[2], *at[3], {}, 2 + static_cast<int64_t>(i)});
        options.step = 2 + static_cast<int64_t>(i);
        REQUIRE(table().adamw(runner.stream, options, other[4 * i].view, other[4 * i + 1].view,
                              norm.get(1) * 0.5, other[4 * i + 2].view, other[4 * i + 3].view,
                              nullptr) == kDone);
      }
      REQUIRE(runner([&](Stream& s) {
                return table().adamw_all(s, options, tensors.data(), 3, 0.5, &factor);
              }) == kDone);
      for (size_t i = 0; i < own.size(); i++)
        if (i % 4 != 1)
          check(
              "adamw_all", own[i], [&](int64_t j) { return other[i].get(j); }, 1);
      REQUIRE(runner([&](Stream& s) {
                return table().scale_all(s, gradients.data(), 3, factor);
              }) == kDone);
      for (size_t i = 1; i < own.size(); i += 4)
        check(
            "scale_all", own[i], [&](int64_t j) { return other[i].get(j) * norm.get(1); }, 2);
    });
  }
}

TEST_CASE("an index out of range is skipped and reported") {
  Tensor from(DType::f32, {3, 2}), index(DType::i64, {4}), out(DType::f32, {4, 2});
  from.fill([](int64_t i) { return static_cast<double>(i); });
  const int64_t indices[] = {1, 2, 4, 3};
  for (int64_t i = 0; i < 4; i++) index.set_whole(i, indices[i]);
  int64_t fault = 0;
  Runner runner(1);
  runner.stream.fault = &fault;
  out.poison();
  REQUIRE(table().gather_rows(runner.stream, from.view, index.view, 1, out.view) == kDone);
  CHECK(fault == 3);
  CHECK(std::isnan(out.get(4)));
  CHECK(out.get(6) == 4);
}

TEST_CASE("the k largest come first, equal ones by position and NaN before all") {
  Generator random = generator("top_k");
  for (DType dtype : kNumbers) {
    for (int64_t k : {0, 1, 7, 40}) {
      Tensor in = random_tensor(random, dtype, {33, 40}, Layout::padded), values(dtype, {33, k}),
             index(DType::i64, {33, k});
      for (int64_t i = 0; i < in.count(); i++) in.set(i, std::floor(in.get(i)));
      if (is_float(dtype)) in.set(55, NAN), in.set(60, NAN);
      for_setups([&](Runner& runner) {
        values.poison(), index.poison();
        REQUIRE(runner([&](Stream& s) {
                  return table().top_k(s, in.view, 1, values.view, index.view);
                }) == kDone);
        for (int64_t row = 0; row < 33; row++) {
          std::vector<int64_t> order(40);
          std::iota(order.begin(), order.end(), 0);
          auto key = [&](int64_t i) {
            double x = in.get(row * 40 + i);
            return std::isnan(x) ? INFINITY : x;
          };
          std::stable_sort(order.begin(), order.end(),
                           [&](int64_t a, int64_t b) { return key(a) > key(b); });
          for (int64_t i = 0; i < k; i++) {
            CHECK(index.whole(row * k + i) == 1 + order[static_cast<size_t>(i)]);
            CHECK(error_of(dtype, values.get(row * k + i),
                           in.get(row * 40 + order[static_cast<size_t>(i)])) == 0);
          }
        }
        CHECK((values.is_guarded() && index.is_guarded()));
      });
    }
  }
  note_error("top_k", 0);  // exact, or a check above failed
}

TEST_CASE("samples follow the softmax, and temperature 0 takes the first largest") {
  Generator random = generator("sample");
  constexpr int64_t rows = 30000;
  for (DType dtype : kFloats) {
    Tensor logits(dtype, {rows, 4}), index(DType::i64, {rows});
    logits.fill([](int64_t i) { return std::log(static_cast<double>(i % 4 + 1)); });
    uint64_t seed = random();
    for_setups([&](Runner& runner) {
      REQUIRE(runner([&](Stream& s) {
                return table().sample(s, logits.view, 1, seed, 5, 0, index.view);
              }) == kDone);
      double counts[4] = {};
      for (int64_t i = 0; i < rows; i++) {
        REQUIRE((index.whole(i) >= 0 && index.whole(i) < 4));
        counts[index.whole(i)]++;
      }
      for (int i = 0; i < 4; i++) CHECK(std::fabs(counts[i] / rows - (i + 1) / 10.0) < 0.015);
      REQUIRE(runner([&](Stream& s) {
                return table().sample(s, logits.view, 0, seed, 5, 1, index.view);
              }) == kDone);
      for (int64_t i = 0; i < rows; i += 997) CHECK(index.whole(i) == 4);
    });
  }
  note_error("sample", 0);  // a sample is a position
}

TEST_CASE("a histogram counts the values within its bins") {
  Generator random = generator("histogram");
  for (DType dtype : kNumbers) {
    for (Layout layout : kOutLayouts) {
      Tensor in = random_tensor(random, dtype, {5, 6003}, layout, 0, 12), counts(DType::i64, {8});
      if (is_float(dtype)) in.set(0, NAN);
      in.set(1, 10), in.set(2, 2);
      for_setups([&](Runner& runner) {
        counts.poison();
        REQUIRE(runner([&](Stream& s) {
                  return table().histogram(s, in.view, 2, 10, counts.view);
                }) == kDone);
        int64_t expected[8] = {};
        for (int64_t i = 0; i < in.count(); i++)
          if (in.get(i) >= 2 && in.get(i) <= 10)
            expected[std::min<int64_t>(static_cast<int64_t>(in.get(i) - 2), 7)]++;
        check(
            "histogram", counts, [&](int64_t i) { return static_cast<double>(expected[i]); }, 0);
      });
    }
  }
}

TEST_CASE("optimizers take PyTorch's steps") {
  Generator random = generator("optimizers");
  constexpr int64_t count = 30001;
  for (DType dtype : {DType::f32, DType::f64}) {
    for (DType grad_type : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
      if (grad_type == DType::f64 && dtype != DType::f64) continue;
      for (bool copies : {false, true}) {
        Tensor start = random_tensor(random, dtype, {count}),
               grad = random_tensor(random, grad_type, {count}),
               m = random_tensor(random, dtype, {count}),
               v = random_tensor(random, dtype, {count}, Layout::dense, 0, 2);
        AdamW options{0.1, 0.8, 0.95, 1e-6, 0.1, 3};
        for_setups([&](Runner& runner) {
          Tensor w(dtype, {count}), mean(dtype, {count}), square(dtype, {count}),
              copy(DType::bf16, {count});
          w.fill([&](int64_t i) { return start.get(i); }),
              mean.fill([&](int64_t i) { return m.get(i); }),
              square.fill([&](int64_t i) { return v.get(i); });
          REQUIRE(runner([&](Stream& s) {
                    return table().adamw(s, options, w.view, grad.view, 0.5, mean.view, square.view,
                                         copies ? &copy.view : nullptr);
                  }) == kDone);
          auto new_m = [&](int64_t i) { return 0.8 * m.get(i) + 0.2 * 0.5 * grad.get(i); };
          auto new_v = [&](int64_t i) {
            return 0.95 * v.get(i) + 0.05 * 0.25 * grad.get(i) * grad.get(i);
          };
          auto new_w = [&](int64_t i) {
            double hat = new_m(i) / (1 - std::pow(0.8, 3)),
                   root = std::sqrt(new_v(i) / (1 - std::pow(0.95, 3)));
            return start.get(i) * (1 - 0.1 * 0.1) - 0.1 * hat / (root + 1e-6);
          };
          check("adamw", mean, new_m, 4, [](int64_t) { return 2.0; });
          check("adamw", square, new_v, dtype == DType::f64 ? 32 : 4);  // 1 - 0.95 is not 0.05
          check("adamw", w, new_w, 8, [&](int64_t i) { return 2 + std::fabs(new_w(i)); });
          if (copies)
            check(
                "adamw", copy, [&](int64_t i) { return w.get(i); }, 0.51);
          for (bool nesterov : {false, true}) {
            for (int kept = 0; kept < 3; kept++) {
              Sgd sgd{0.1,  kept > 0 ? 0.9 : 0.0, nesterov ? 0 : 0.1,
                      0.01, nesterov && kept > 0, kept == 1};
              w.fill([&](int64_t i) { return start.get(i); });
              mean.fill([&](int64_t i) { return kept == 1 ? NAN : m.get(i); });
              REQUIRE(runner([&](Stream& s) {
                        return table().sgd(s, sgd, w.view, grad.view, 0.5,
                                           kept > 0 ? &mean.view : nullptr,
                                           copies ? &copy.view : nullptr);
                      }) == kDone);
              check(
                  "sgd", w,
                  [&](int64_t i) {
                    double g = 0.5 * grad.get(i) + 0.01 * start.get(i);
                    double buffer = kept == 1 ? g : 0.9 * m.get(i) + (1 - sgd.dampening) * g;
                    return start.get(i) - 0.1 * (kept == 0      ? g
                                                 : sgd.nesterov ? g + 0.9 * buffer
                                                                : buffer);
                  },
                  4, [](int64_t) { return 2.0; });
            }
          }
        });
      }
    }
  }
  for (DType dtype : kFloats) {
    Tensor in = random_tensor(random, dtype, {100003}), out(DType::f64, {1});
    for_setups([&](Runner& runner) {
      out.set(0, 2.5);
      REQUIRE(table().add_sum_of_squares(runner.stream, in.view, out.view) == kDone);
      double sum = 2.5;
      for (int64_t i = 0; i < in.count(); i++) sum += in.get(i) * in.get(i);
      check(
          "add_sum_of_squares", out, [&](int64_t) { return sum; }, 1e4);
    });
  }
}

TEST_CASE("random numbers depend only on their position, at every level and for any split") {
  Generator random = generator("numbers");
  for (int64_t count : {0, 1, 5, 1003, 30000}) {
    uint64_t seed = random(), first = random() % 1000;
    for (DType dtype : kFloats) {
      Tensor out(dtype, {count});
      for_setups([&](Runner& runner) {
        out.poison();
        REQUIRE(runner([&](Stream& s) {
                  return table().uniform(s, out.view, seed, first, -1, 3);
                }) == kDone);
        check(
            "uniform", out,
            [&](int64_t i) {
              uint64_t number = first + static_cast<uint64_t>(i);
              return visit_float(dtype, [&](auto type) {
                using T = decltype(type);
                double unit = dtype == DType::f64
                                  ? uniform_double(seed, number)
                                  : static_cast<double>(uniform_float(seed, number));
                T made = convert<T>(-1 + 4 * unit);
                double value = convert<double>(made);
                return value < 3 ? value : convert<double>(next_below(convert<T>(3.0)));
              });
            },
            0);
        for (int64_t i = 0; i < count; i++) REQUIRE(out.get(i) < 3);
        out.poison();
        REQUIRE(runner([&](Stream& s) { return table().normal(s, out.view, seed, first, 1, 2); }) ==
                kDone);
        check(
            "normal", out,
            [&](int64_t i) {
              uint64_t number = first + static_cast<uint64_t>(i);
              return visit_float(dtype, [&](auto type) {
                return convert<double>(
                    convert<decltype(type)>(normal_scaled(normal_double(seed, number), 1, 2)));
              });
            },
            0);
      });
    }
    for (DType dtype : {DType::i64, DType::i32, DType::u8}) {
      Tensor out(dtype, {count});
      for_setups([&](Runner& runner) {
        out.poison();
        REQUIRE(runner([&](Stream& s) {
                  return table().integers(s, out.view, seed, first, 3, 99);
                }) == kDone);
        check(
            "integers", out,
            [&](int64_t i) {
              uint64_t number = first + static_cast<uint64_t>(i);
              Random4 block = random_block(seed, number / 2, RandomUse::integers);
              uint64_t bits = number % 2 == 0 ? join(block.word[0], block.word[1])
                                              : join(block.word[2], block.word[3]);
              __extension__ typedef unsigned __int128 Wide;
              return static_cast<double>(3 +
                                         static_cast<uint64_t>(static_cast<Wide>(bits) * 97 >> 64));
            },
            0);
      });
    }
    for (DType dtype : kAll) {
      Tensor out(dtype, {count});
      for_setups([&](Runner& runner) {
        out.poison();
        REQUIRE(table().bernoulli(runner.stream, out.view, seed, first, 0.3) == kDone);
        check(
            "bernoulli", out,
            [&](int64_t i) {
              return static_cast<double>(uniform_float(seed, first + static_cast<uint64_t>(i))) <
                             0.3
                         ? 1.0
                         : 0.0;
            },
            0);
      });
    }
  }
}

TEST_CASE("normal numbers equal Box and Muller's with libm, except for a few last bits") {
  for (uint64_t i = 0; i < 20000; i++) {
    Random4 bits = random_block(7, i, RandomUse::normal);
    double open = (static_cast<double>(join(bits.word[0], bits.word[1]) >> 11) + 0.5) * 0x1p-53;
    double turn = static_cast<double>(join(bits.word[2], bits.word[3]) >> 11) * 0x1p-53;
    double radius = std::sqrt(-2 * std::log(open));
    NormalPair pair = normal_pair(7, i);
    CHECK(std::fabs(pair.first - radius * std::cos(2 * M_PI * turn)) <= radius * 0x1p-50);
    CHECK(std::fabs(pair.second - radius * std::sin(2 * M_PI * turn)) <= radius * 0x1p-50);
    CHECK(exact_exp(pair.first) == Approx(std::exp(pair.first)).epsilon(1e-15));
  }
}

TEST_CASE("price paths follow the formula, have the same ends, and do not depend on the split") {
  for (DType dtype : {DType::f32, DType::f64}) {
    for (int64_t steps : {1, 5, 700}) {
      constexpr int64_t paths = 41;
      Gbm options{100, 0.05, 0.2, 2, steps, test_seed(), 3};
      Tensor all(dtype, {paths, steps + 1}), ends(dtype, {paths}), part(dtype, {paths - 7});
      GbmStep step = gbm_step(0.05, 0.2, 2, steps);
      std::vector<double> expected;
      for (int64_t path = 0; path < paths; path++) {
        double price = 100;
        expected.push_back(price);
        for (int64_t i = 0; i < steps; i++) {
          double z = normal_double(options.seed, static_cast<uint64_t>((path + 3) * steps + i),
                                   RandomUse::gbm);
          price *= std::exp(step.drift + step.diffusion * z);
          expected.push_back(price);
        }
      }
      for_setups([&](Runner& runner) {
        all.poison(), ends.poison();
        REQUIRE(table().gbm_paths(runner.stream, options, all.view) == kDone);
        check(
            "gbm_paths", all, [&](int64_t i) { return expected[static_cast<size_t>(i)]; },
            dtype == DType::f32 ? 0.6 : 2000);
        REQUIRE(table().gbm_ends(runner.stream, options, ends.view) == kDone);
        check(
            "gbm_ends", ends,
            [&](int64_t i) { return expected[static_cast<size_t>(i * (steps + 1) + steps)]; },
            dtype == DType::f32 ? 0.6 : 2000);
        Gbm later = options;
        later.first_path += 7;
        REQUIRE(table().gbm_ends(runner.stream, later, part.view) == kDone);
        for (int64_t path = 0; path < paths; path++) {
          CHECK(ends.get(path) == all.get(path * (steps + 1) + steps));
          if (path >= 7) CHECK(part.get(path - 7) == ends.get(path));
        }
      });
    }
  }
}

}  // namespace
}  // namespace flow::kernels
