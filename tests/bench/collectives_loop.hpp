// The loop of bench_collectives and its peers: all_reduce of f32, each size for a while.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <vector>

namespace flow::bench {

inline const std::vector<size_t> kCollectiveBytes = {
    1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};

/// Per measurement: with more ranks than cores, some need milliseconds for a kilobyte.
constexpr double kSecondsMost = 0.2;

/// `reduce(data, count)` sums in place, `last(seconds)` is the maximum over all ranks. The first
/// rank prints a line "bytes microseconds" for each size.
template <typename Reduce, typename Last>
void time_all_reduce(int rank, Reduce reduce, Last last) {
  std::vector<float> data(kCollectiveBytes.back() / sizeof(float), 1.0f);
  for (size_t bytes : kCollectiveBytes) {
    auto seconds_each = [&](size_t rounds) {
      for (float& number : data) number = 1.0f;
      last(0.0);
      auto began = std::chrono::steady_clock::now();
      for (size_t i = 0; i < rounds; i++) reduce(data.data(), bytes / sizeof(float));
      std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
      return last(took.count()) / static_cast<double>(rounds);
    };
    double first = std::max(seconds_each(2), 1e-9), best = first;  // equal on every rank
    double most = std::min({1'000.0, 48e6 / static_cast<double>(bytes), kSecondsMost / first});
    for (int repeat = 0; repeat < 5; repeat++)
      best = std::min(best, seconds_each(static_cast<size_t>(std::max(2.0, most))));
    if (rank == 0) std::printf("%zu %.3f\n", bytes, best * 1e6);
    std::fflush(stdout);
  }
}

}  // namespace flow::bench
