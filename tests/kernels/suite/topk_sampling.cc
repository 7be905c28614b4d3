// The largest elements of each row, samples and counts.
#include <numeric>

#include "kernels/shared/philox.hpp"
#include "tests/kernels/suite/suite.hpp"

namespace flow::suite {
namespace {

void check_top(Suite& s, DType dtype, int64_t rows, int64_t columns, int64_t k, Layout layout) {
  Array in = s.filled(dtype, {rows, columns}, layout);
  for (int64_t i = 0; is_float(dtype) && i < in.count(); i++)  // so that some are equal
    if (s.integer(0, 1)) in.set(i, std::rint(in.at(i)));
  if (is_float(dtype) && in.count() > 3 && s.integer(0, 1)) {
    in.set(s.integer(0, in.count() - 1), NAN);
    in.set(s.integer(0, in.count() - 1), -0.0);
    in.set(s.integer(0, in.count() - 1), 0.0);
  }
  Array values(dtype, {rows, k}), index(DType::i64, {rows, k});
  std::vector<double> want;
  std::vector<int64_t> places;
  for (int64_t row = 0; row < rows; row++) {
    std::vector<int64_t> order(static_cast<size_t>(columns));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      double x = in.at(row * columns + a), y = in.at(row * columns + b);
      if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && !std::isnan(y);
      return x > y;
    });
    for (int64_t i = 0; i < k; i++) {
      places.push_back(order[static_cast<size_t>(i)] + 1);
      want.push_back(in.at(row * columns + order[static_cast<size_t>(i)]));
    }
  }
  s.check("top_k", &Kernels::top_k,
          std::string(dtype_name(dtype)) + " " + std::to_string(k) + " of " + text_of(in.shape()) +
              " " + name_of(layout),
          {&in, &values, &index},
          [](const Kernels& kernels, Stream& stream, Views v) {
            return kernels.top_k(stream, v[0], 1, v[1], v[2]);
          },
          {{&values, want, {}, 0}, {&index, {}, places, 0}});
}

void check_sample(Suite& s, DType dtype, int64_t rows, int64_t columns, double temperature) {
  Array logits = s.filled(dtype, {rows, columns}, Layout::rows, -3, 3), index(DType::i64, {rows});
  uint64_t seed = s.random(), first = static_cast<uint64_t>(s.integer(0, 50));
  std::vector<int64_t> want;
  for (int64_t row = 0; row < rows; row++) {
    double largest = -INFINITY;
    int64_t best = 0;
    for (int64_t i = 0; i < columns; i++) {
      if (logits.at(row * columns + i) > largest) best = i;
      largest = std::max(largest, logits.at(row * columns + i));
    }
    if (temperature > 0) {
      double total = 0, sum = 0;
      auto weight = [&](int64_t i) {
        return std::exp((logits.at(row * columns + i) - largest) / temperature);
      };
      for (int64_t i = 0; i < columns; i++) total += weight(i);
      double target =
          total * uniform_double(seed, first + static_cast<uint64_t>(row), RandomUse::sample);
      for (best = 0; best + 1 < columns; best++) {
        sum += weight(best);
        if (sum > target) break;
      }
    }
    want.push_back(best + 1);
  }
  s.check("sample", &Kernels::sample,
          std::string(dtype_name(dtype)) + " " + text_of(logits.shape()), {&logits, &index},
          [&](const Kernels& k, Stream& stream, Views v) {
            return k.sample(stream, v[0], temperature, seed, first, 1, v[1]);
          },
          {{&index, {}, want, 0}});
}

void check_counts(Suite& s, DType dtype, const Shape& shape, int64_t bins, Layout layout) {
  Array in = s.filled(dtype, shape, layout, -6, 6), counts(DType::i64, {bins});
  if (is_float(dtype) && in.count() > 4) {
    in.set(0, NAN);
    in.set(1, 5);
    in.set(2, -4);
    in.set(3, INFINITY);
  }
  std::vector<int64_t> want(static_cast<size_t>(bins));
  double low = -4, high = 5;
  for (double x : in.values()) {
    if (!(x >= low && x <= high)) continue;
    auto bin = static_cast<int64_t>((x - low) * (static_cast<double>(bins) / (high - low)));
    want[static_cast<size_t>(std::min(bin, bins - 1))]++;
  }
  s.check("histogram", &Kernels::histogram,
          std::string(dtype_name(dtype)) + " " + text_of(shape) + " " + std::to_string(bins),
          {&in, &counts},
          [&](const Kernels& k, Stream& stream, Views v) {
            return k.histogram(stream, v[0], low, high, v[1]);
          },
          {{&counts, {}, want, 0}});
}

}  // namespace

void check_choosing(Suite& s) {
  for (DType dtype : kNumbers) {
    for (Layout layout : {Layout::dense, Layout::swapped}) {
      check_top(s, dtype, 1, 1, 1, layout);
      check_top(s, dtype, 3, 10, 10, layout);
      check_top(s, dtype, 5, 1000, 7, layout);
      check_top(s, dtype, 2, 700, 300, layout);
      check_top(s, dtype, 0, 5, 2, layout);
      check_counts(s, dtype, {1000}, 9, layout);
      check_counts(s, dtype, {40, 33}, 10000, layout);
      check_counts(s, dtype, {0}, 3, layout);
    }
    check_top(s, dtype, 2, 5000, 4500, Layout::dense);
  }
  for (DType dtype : kFloats)
    for (double temperature : {0.0, 1.0, 0.7}) {
      check_sample(s, dtype, 4, 1, temperature);
      check_sample(s, dtype, 9, 50, temperature);
      check_sample(s, dtype, 3, 1300, temperature);
    }
}

}  // namespace flow::suite
