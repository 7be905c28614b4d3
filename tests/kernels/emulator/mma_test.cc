// The emulated tensor cores follow the PTX ISA for mma.m16n8k16, ldmatrix and cp.async.
#include <catch2/catch.hpp>
#include <vector>

#include "kernels/cuda/mma.cuh"
#include "kernels/shared/types.hpp"

namespace flow::cuda {
namespace {

using emulator::error_text;

constexpr int kPitchHere = 24;  // elements per row of a matrix in shared memory

bool stopped_with(int code, const std::string& words) {
  INFO(error_text());
  return code != 0 && error_text().find(words) != std::string::npos;
}

int small_number(int seed, int row, int column) { return (row * 7 + column * 3 + seed) % 11 - 5; }

// The first fragments of lanes 0, 5 and 31, from the figures of the ISA.
TEST_CASE("tensor cores: fragments are where the ISA places them") {
  struct Element {
    int lane, i, row, column;
  };
  const Element of_a[] = {{0, 0, 0, 0},   {0, 1, 0, 1},   {0, 2, 8, 0},    {0, 3, 8, 1},
                          {0, 4, 0, 8},   {0, 5, 0, 9},   {0, 6, 8, 8},    {0, 7, 8, 9},
                          {5, 0, 1, 2},   {5, 3, 9, 3},   {5, 4, 1, 10},   {31, 0, 7, 6},
                          {31, 2, 15, 6}, {31, 5, 7, 15}, {31, 7, 15, 15}, {4, 0, 1, 0}};
  const Element of_b[] = {{0, 0, 0, 0},  {0, 1, 1, 0},  {0, 2, 8, 0},   {0, 3, 9, 0}, {5, 0, 2, 1},
                          {5, 3, 11, 1}, {31, 0, 6, 7}, {31, 3, 15, 7}, {4, 0, 0, 1}};
  const Element of_d[] = {{0, 0, 0, 0}, {0, 1, 0, 1}, {0, 2, 8, 0},  {0, 3, 8, 1},
                          {5, 0, 1, 2}, {5, 2, 9, 2}, {31, 1, 7, 7}, {31, 3, 15, 7}};
  // One element of one side is 1, the other side is all ones: one row or column of d is 1.
  auto product = [](const Element* in_a, const Element* in_b) {
    std::vector<float> out(16 * 8);
    REQUIRE(emulator::launch(dim3(1), 32, 0, [&] {
              int self = emulator::lane();
              uint32_t a[4] = {}, b[2] = {};
              uint32_t one = Half::from(1).bits, ones = one | one << 16;
              for (uint32_t& each : a) each = in_a ? 0 : ones;
              for (uint32_t& each : b) each = in_b ? 0 : ones;
              if (in_a && in_a->lane == self) a[in_a->i / 2] = one << (16 * (in_a->i % 2));
              if (in_b && in_b->lane == self) b[in_b->i / 2] = one << (16 * (in_b->i % 2));
              float d[4] = {};
              mma_16816<Half>(d, a, b[0], b[1]);
              for (int i = 0; i < 4; i++)
                out[static_cast<size_t>((self / 4 + i / 2 * 8) * 8 + self % 4 * 2 + i % 2)] = d[i];
            }) == 0);
    return out;
  };
  for (const Element& each : of_a) {
    auto out = product(&each, nullptr);
    for (int at = 0; at < 16 * 8; at++)
      REQUIRE(out[static_cast<size_t>(at)] == (at / 8 == each.row ? 1 : 0));
  }
  for (const Element& each : of_b) {
    auto out = product(nullptr, &each);
    for (int at = 0; at < 16 * 8; at++)
      REQUIRE(out[static_cast<size_t>(at)] == (at % 8 == each.column ? 1 : 0));
  }
  // Finds the k of an element: its product with a single element of the other side is not 0.
  for (const Element& a : of_a)
    for (const Element& b : of_b) {
      auto out = product(&a, &b);
      for (int at = 0; at < 16 * 8; at++) {
        bool meets = a.column == b.row && at / 8 == a.row && at % 8 == b.column;
        REQUIRE(out[static_cast<size_t>(at)] == (meets ? 1 : 0));
      }
    }
  for (const Element& each : of_d) {
    float seen = 0;
    REQUIRE(emulator::launch(dim3(1), 32, 0, [&] {
              int self = emulator::lane();
              uint32_t one = Half::from(1).bits, a[4] = {}, b[2] = {};
              // a has a 1 in (row, 0), b in (0, column).
              if (self == each.row % 8 * 4) a[each.row / 8] = one;
              if (self == each.column * 4) b[0] = one;
              float d[4] = {};
              mma_16816<Half>(d, a, b[0], b[1]);
              if (self == each.lane) seen = d[each.i];
            }) == 0);
    CHECK(seen == 1);
  }
}

template <typename T>
void check_product_from_memory(bool backwards) {
  emulator::reversed = backwards;
  std::vector<float> out(16 * 16);
  REQUIRE(
      emulator::launch(dim3(1), 32, 3 * 16 * kPitchHere * sizeof(T), [&] {
        auto* a = reinterpret_cast<T*>(dynamic_room());
        T* columns = a + 16 * kPitchHere;  // of b, one row each
        T* rows = columns + 16 * kPitchHere;
        int self = emulator::lane();
        for (int i = self; i < 16 * 16; i += 32) {
          int row = i / 16, column = i % 16;
          a[row * kPitchHere + column] = T::from(static_cast<float>(small_number(1, row, column)));
          T b = T::from(static_cast<float>(small_number(2, row, column)));
          columns[column * kPitchHere + row] = b;
          rows[row * kPitchHere + column] = b;
        }
        __syncwarp();
        uint32_t left[4], right[4], same[4];
        ldmatrix_x4(left, a + self % 16 * kPitchHere + self / 16 * 8);
        ldmatrix_x4(right, columns + (self / 16 * 8 + self % 8) * kPitchHere + self / 8 % 2 * 8);
        ldmatrix_x4_trans(same, rows + self % 16 * kPitchHere + self / 16 * 8);
        for (int half = 0; half < 2; half++) {
          float d[4] = {1, 1, 1, 1};
          mma_16816<T>(d, left, right[2 * half], right[2 * half + 1]);
          for (int i = 0; i < 4; i++)
            out[static_cast<size_t>((self / 4 + i / 2 * 8) * 16 + 8 * half + self % 4 * 2 +
                                    i % 2)] = d[i];
          for (int i = 0; i < 2; i++)
            if (right[2 * half + i] != same[2 * half + i]) out[0] = NAN;
        }
      }) == 0);
  emulator::reversed = false;
  for (int row = 0; row < 16; row++)
    for (int column = 0; column < 16; column++) {
      int sum = 1;
      for (int k = 0; k < 16; k++) sum += small_number(1, row, k) * small_number(2, k, column);
      REQUIRE(out[static_cast<size_t>(row * 16 + column)] == static_cast<float>(sum));
    }
}

TEST_CASE("tensor cores: matrices in shared memory are multiplied as by plain loops") {
  for (bool backwards : {false, true}) {
    check_product_from_memory<Half>(backwards);
    check_product_from_memory<Brain>(backwards);
  }
}

TEST_CASE("tensor cores: two numbers are rounded into one register, the first in the low half") {
  CHECK(pack_2<Half>(1, -2) == (0x3c00u | 0xc000u << 16));
  CHECK(pack_2<Brain>(1, -2) == (0x3f80u | 0xc000u << 16));
  CHECK(pack_2<Half>(1 + 0x1p-11f, 0) == 0x3c00u);  // halfway, to even
}

TEST_CASE("tensor cores: a partial warp, unaligned and unshared memory are detected") {
  CHECK(stopped_with(emulator::launch(dim3(1), 64, 0,
                                      [] {
                                        uint32_t a[4] = {};
                                        float d[4] = {};
                                        if (threadIdx.x != 40) mma_16816<Half>(d, a, 0, 0);
                                      }),
                     "31 lanes"));
  CHECK(stopped_with(emulator::launch(dim3(1), 16, 0,
                                      [] {
                                        uint32_t a[4] = {};
                                        float d[4] = {};
                                        mma_16816<Half>(d, a, 0, 0);
                                      }),
                     "not whole"));
  auto load_from = [](int offset, bool transposed) {
    return emulator::launch(dim3(1), 32, 32 * 16 + 16, [&] {
      uint32_t to[4];
      const char* from = dynamic_room() + emulator::lane() * 16 + offset;
      if (transposed)
        ldmatrix_x4_trans(to, from);
      else
        ldmatrix_x4(to, from);
    });
  };
  for (bool transposed : {false, true}) {
    CHECK(load_from(0, transposed) == 0);
    CHECK(stopped_with(load_from(2, transposed), "a row of ldmatrix is not aligned"));
    CHECK(stopped_with(load_from(32, transposed), "not shared memory"));
  }
}

TEST_CASE("asynchronous copies: data arrives when it is awaited, and not before") {
  alignas(16) const float from[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<float> seen;
  REQUIRE(emulator::launch(dim3(1), 32, 64, [&] {
            auto* room = reinterpret_cast<float*>(dynamic_room());
            if (threadIdx.x == 0) {
              copy_async<16>(room, from, true);
              commit_copies();
              copy_async<16>(room + 4, from + 4, true);
              copy_async<16>(room + 8, from, false);
              copy_async<4>(room + 12, from + 1, true);
              commit_copies();
              wait_for_copies<1>();
              seen.insert(seen.end(), {room[3], room[4]});
              wait_for_copies<0>();
              seen.insert(seen.end(), {room[4], room[8], room[12]});
            }
          }) == 0);
  REQUIRE(seen.size() == 5);
  CHECK(seen[0] == 4);
  CHECK(std::isnan(seen[1]));
  CHECK(seen[2] == 5);
  CHECK(seen[3] == 0);
  CHECK(seen[4] == 2);

  auto copy_to = [&](int to, int source, bool waits) {
    return emulator::launch(dim3(1), 32, 64, [&, to, source, waits] {
      if (threadIdx.x != 0) return;
      copy_async<16>(dynamic_room() + to, reinterpret_cast<const char*>(from) + source, true);
      commit_copies();
      if (waits) wait_for_copies<0>();
    });
  };
  CHECK(copy_to(16, 16, true) == 0);
  CHECK(stopped_with(copy_to(8, 16, true), "the target of a copy is not aligned"));
  CHECK(stopped_with(copy_to(16, 4, true), "the source of a copy is not aligned"));
  CHECK(stopped_with(copy_to(64, 0, true), "not shared memory"));
  CHECK(stopped_with(copy_to(16, 16, false), "before its copies were waited for"));
  CHECK(copy_to(16, 16, true) == 0);
}

}  // namespace
}  // namespace flow::cuda
