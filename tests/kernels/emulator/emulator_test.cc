// The emulator runs kernels as a device does, and detects undefined behavior.
#include "tests/kernels/emulator/emulator.hpp"

#include <catch2/catch.hpp>

namespace flow::emulator {
namespace {

bool failed_with(int code, const std::string& words) {
  INFO(error_text());
  return code != 0 && error_text().find(words) != std::string::npos;
}

TEST_CASE("emulator: every thread of every block runs once, in either order") {
  for (bool backwards : {false, true}) {
    reversed = backwards;
    std::vector<int> seen(3 * 2 * 70);
    REQUIRE(launch(dim3(3, 2), 70, 0, [&] {
              seen[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x]++;
            }) == 0);
    CHECK(seen == std::vector<int>(3 * 2 * 70, 1));
  }
  reversed = false;
}

TEST_CASE("emulator: a barrier holds all threads, a shuffle gives the other lane's value") {
  static const char key = 0;
  std::vector<int> out(256);
  REQUIRE(launch(dim3(2), 128, 0, [&] {
            auto* room = static_cast<int*>(shared_room(&key, 128 * sizeof(int)));
            int i = static_cast<int>(threadIdx.x);
            room[i] = i;
            __syncthreads();
            int other = room[127 - i];
            other += __shfl_xor_sync(0xffffffffu, i, 1);
            other += static_cast<int>(__ballot_sync(0xffffffffu, i % 32 < 3));
            out[blockIdx.x * 128 + threadIdx.x] = other;
          }) == 0);
  for (int i = 0; i < 256; i++) REQUIRE(out[i] == 127 - i % 128 + (i % 128 ^ 1) + 7);
}

TEST_CASE("emulator: a barrier that some threads do not reach is detected") {
  int code = launch(dim3(1), 64, 0, [] {
    if (threadIdx.x < 40) __syncthreads();
  });
  CHECK(failed_with(code, "40 of 64"));
  code = launch(dim3(1), 64, 0, [] {
    if (threadIdx.x < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  });
  CHECK(failed_with(code, "threads of a block wait at"));
  code = launch(dim3(1), 64, 0, [] {
    if (threadIdx.x != 33) __shfl_sync(0xffffffffu, 1, 0);
  });
  CHECK(failed_with(code, "31 lanes"));
  // The next launch works again.
  CHECK(launch(dim3(1), 64, 0, [] { __syncthreads(); }) == 0);
}

TEST_CASE("emulator: a launch beyond the device's limits is rejected") {
  auto nothing = [] {};
  CHECK(failed_with(launch(dim3(1), 1025, 0, nothing), "1025 threads"));
  CHECK(failed_with(launch(dim3(0), 32, 0, nothing), "a grid of 0"));
  CHECK(failed_with(launch(dim3(1, 65536), 32, 0, nothing), "65536"));
  CHECK(failed_with(launch(dim3(1), 32, 233 * 1024, nothing), "shared memory"));
  static const char key = 0;
  CHECK(failed_with(launch(dim3(1), 32, 0, [] { shared_room(&key, 49 * 1024); }), "__shared__"));
}

TEST_CASE("emulator: shared memory begins as NaN") {
  static const char key = 0;
  bool all = true;
  for (int time = 0; time < 2; time++)
    REQUIRE(launch(dim3(2), 32, 64, [&] {
              auto* room = static_cast<float*>(shared_room(&key, 4 * sizeof(float)));
              auto* more = reinterpret_cast<float*>(dynamic_room());
              __syncthreads();
              if (threadIdx.x != 0) return;
              all = all && std::isnan(room[3]) && std::isnan(more[15]);
              room[3] = more[15] = 1;
            }) == 0);
  CHECK(all);
}

}  // namespace
}  // namespace flow::emulator
