// Work that is split between threads is done completely and once.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/cpu/parallel.hpp"

namespace flow::cpu {
namespace {

TEST_CASE("every item is processed once, for any number of threads", "[threads]") {
  for (int threads : {1, 2, 3, 8}) {
    for (int64_t count : {0, 1, 2, 7, 1000}) {
      for (int64_t grain : {0, 1, 3, 10000}) {
        std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
        std::atomic<int> parts = 0;
        parallel_for(threads, count, grain, [&](int64_t first, int64_t last) {
          parts++;
          for (int64_t i = first; i < last; i++) visits[static_cast<size_t>(i)]++;
        });
        for (auto& each : visits) CHECK(each == 1);
        CHECK(parts <= threads);
        if (grain > 1) CHECK(parts <= std::max<int64_t>(1, count / grain));
      }
    }
  }
}

TEST_CASE("ten thousand small operations in a row, with pauses between some of them", "[threads]") {
  std::vector<int64_t> sums(4);
  for (int round = 0; round < 10000; round++) {
    parallel_for(4, 4, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; i++) sums[static_cast<size_t>(i)] += i;
    });
    if (round % 1000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(sums == std::vector<int64_t>{0, 10000, 20000, 30000});
}

TEST_CASE("several threads may submit work at once", "[threads]") {
  std::atomic<int64_t> sum = 0;
  std::vector<std::thread> askers;
  for (int asker = 0; asker < 4; asker++) {
    askers.emplace_back([&] {
      for (int round = 0; round < 200; round++) {
        parallel_for(3, 100, 1, [&](int64_t first, int64_t last) { sum += last - first; });
      }
    });
  }
  for (std::thread& each : askers) each.join();
  CHECK(sum == 4 * 200 * 100);
}

}  // namespace
}  // namespace flow::cpu
