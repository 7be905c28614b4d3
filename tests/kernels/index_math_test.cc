// The position of an element in each of several operands, and the assignment of threads to work.
#include "kernels/shared/index_math.hpp"

#include <catch2/catch.hpp>
#include <random>

#include "kernels/shared/launch.hpp"

namespace flow::kernels {
namespace {

template <int n>
IndexMath<n> index_math_of(const View (&views)[n]) {
  const int64_t* strides[n];
  for (int k = 0; k < n; k++) strides[k] = views[k].strides;
  return index_math_over<n>(views[0].shape, strides);
}

int64_t offset_of(const View& view, int64_t i) {
  int64_t offset = 0;
  for (int dim = view.rank() - 1; dim >= 0; dim--) {
    offset += i % view.shape[dim] * view.strides[dim];
    i /= view.shape[dim];
  }
  return offset;
}

template <int n>
void check_index_math(const IndexMath<n>& index_math, const View (&views)[n]) {
  REQUIRE(index_math.count == views[0].count());
  for (int64_t i = 0; i < index_math.count; i++) {
    int64_t offset[n];
    index_math.at(i, offset);
    for (int k = 0; k < n; k++) REQUIRE(offset[k] == offset_of(views[k], i));
  }
}

TEST_CASE("division by a precomputed divisor equals division") {
  std::mt19937 random(1);
  const uint32_t most = (uint32_t{1} << 31) - 1;
  for (uint32_t by : {1u, 2u, 3u, 7u, 10u, 641u, 65535u, 65536u, 1000003u, most - 1, most}) {
    Divide divide(by);
    for (uint32_t n : {0u, 1u, by - 1, by, by + 1, most - 1, most})
      if (n <= most) CHECK(divide(n) == n / by);
    for (int i = 0; i < 1000; i++) {
      uint32_t n = random() >> 1;
      REQUIRE(divide(n) == n / by);
    }
  }
}

TEST_CASE("index math gives the positions of the strides, in 32 bits and in 64") {
  char memory[1];
  View a = dense(DType::f32, {3, 4, 5, 6}, memory);
  const View all[][2] = {
      {a, a},
      {a, swap_dims(dense(DType::f32, {3, 4, 6, 5}, memory), 2, 3)},
      {a, broadcast_to(dense(DType::f32, {4, 1, 6}, memory), a.shape)},
      {swap_dims(a, 0, 3), swap_dims(a, 0, 3)},
      {dense(DType::f32, {}, memory), dense(DType::f32, {}, memory)},
      {dense(DType::f32, {1, 1}, memory), dense(DType::f32, {1, 1}, memory)},
      {dense(DType::f32, {2, 0}, memory), dense(DType::f32, {2, 0}, memory)},
  };
  for (const auto& views : all) {
    auto index_math = index_math_of<2>(views);
    CHECK(index_math.small);
    check_index_math<2>(index_math, views);
    index_math.small = false;
    check_index_math<2>(index_math, views);
  }
  View backwards = a;
  backwards.strides[1] = -backwards.strides[1];
  const View views[] = {a, backwards};
  check_index_math<2>(index_math_of<2>(views), views);
}

TEST_CASE("dimensions that are contiguous in all operands are merged") {
  View a = dense(DType::f32, {3, 4, 5}, nullptr);
  CHECK(index_math_of<2>({a, a}).rank == 1);
  CHECK(index_math_of<2>({a, broadcast_to(dense(DType::f32, {5}, nullptr), a.shape)}).rank == 2);
  View far = a;
  far.strides[0] = int64_t{1} << 32;
  CHECK_FALSE(index_math_of<2>({a, far}).small);
}

TEST_CASE("packs need adjacent elements, whole rows and aligned addresses") {
  alignas(16) char memory[16];
  size_t sizes[] = {4, 4};
  auto packs = [&](const View& a, const View& b, int64_t& count) {
    auto index_math = index_math_of<2>({a, b});
    bool does = index_packs<2>(index_math, 4, {a.data, b.data}, sizes);
    count = index_math.count;
    return does;
  };
  int64_t count;
  View a = dense(DType::f32, {1003}, memory);
  CHECK(packs(a, a, count));
  CHECK(count == 250);  // three elements remain
  View shifted = a;
  shifted.data += 4;
  CHECK_FALSE(packs(a, shifted, count));
  CHECK(count == 1003);
  View table = dense(DType::f32, {6, 8}, memory);
  CHECK(packs(table, broadcast_to(dense(DType::f32, {8}, memory), table.shape), count));
  CHECK(count == 12);
  CHECK(packs(table, broadcast_to(dense(DType::f32, {6, 1}, memory), table.shape), count));
  CHECK_FALSE(packs(table, swap_dims(dense(DType::f32, {8, 6}, memory), 0, 1), count));
  View odd = dense(DType::f32, {6, 7}, memory);
  CHECK_FALSE(packs(odd, broadcast_to(dense(DType::f32, {7}, memory), odd.shape), count));
  View gap = table;
  gap.strides[0] = 9;
  CHECK_FALSE(packs(table, gap, count));
}

// Addresses are not read: only positions are computed.
TEST_CASE("index math reaches beyond 2^31 elements") {
  constexpr int64_t far = int64_t{1} << 31;
  alignas(16) char memory[16];
  std::mt19937_64 random(3);
  View rows = dense(DType::bf16, {70'001, 40'008}, memory);
  View few = dense(DType::bf16, {3, far / 2, 2}, memory);
  View gaps = rows;
  gaps.strides[0] = far + 8;
  const View all[][2] = {
      {dense(DType::bf16, {far + 4099}, memory), dense(DType::bf16, {far + 4099}, memory)},
      {rows, broadcast_to(dense(DType::bf16, {40'008}, memory), rows.shape)},
      {swap_dims(few, 0, 2), swap_dims(few, 0, 2)},
      {rows, gaps},
  };
  for (const auto& views : all) {
    auto index_math = index_math_of<2>(views);
    auto packs = index_math;
    CHECK_FALSE(index_math.small);
    size_t sizes[] = {2, 2};
    bool has_packs = index_packs<2>(packs, 8, {memory, memory}, sizes);
    CHECK(has_packs == (views[0].strides[views[0].rank() - 1] == 1 && &views != &all[2]));
    int64_t count = views[0].count();
    REQUIRE(index_math.count == count);
    for (int i = 0; i < 3000; i++) {
      auto number = static_cast<int64_t>(random() % static_cast<uint64_t>(count));
      if (i < 6) number = std::min(count - 1, i < 3 ? far + i - 1 : count + i - 6);
      int64_t offset[2];
      index_math.at(number, offset);
      for (int k = 0; k < 2; k++) REQUIRE(offset[k] == offset_of(views[k], number));
      int64_t pack = number / 8;
      if (!has_packs || pack >= packs.count) continue;
      packs.at(pack, offset);
      for (int k = 0; k < 2; k++) REQUIRE(offset[k] == offset_of(views[k], pack * 8));
    }
  }
  CHECK(blocks_for(far + 4099) == kBlocksMax);  // its threads loop
}

TEST_CASE("every launch covers its work within a device's limits") {
  for (int64_t rows : {1, 3, 4, 5, 100'000, 10'000'000})
    for (int64_t columns : {1, 32, 1024, 1025, 8192, 8193, 50'257, 1'000'000}) {
      RowLaunch launch = rows_for(rows, columns);
      CHECK(launch.threads <= 1024);
      CHECK(launch.threads % launch.threads_of_row == 0);
      CHECK((launch.threads_of_row == kWarp || launch.threads_of_row == launch.threads));
      CHECK(launch.blocks >= 1);
      CHECK(launch.blocks <= rows);
    }
  for (int64_t outputs : {1, 7, 33, 4096, 10'000'000})
    for (int64_t length : {1, 5, 64, 1000, 100'000, 1'000'000'000})
      for (bool by_output : {false, true}) {
        ReduceLaunch launch = reduce_for(outputs, length, by_output);
        CHECK(launch.wide * launch.deep == kBlockThreads);
        CHECK((launch.deep & (launch.deep - 1)) == 0);
        CHECK(launch.splits >= 1);
        CHECK(launch.splits <= kSplitsMax);
        CHECK(launch.blocks >= 1);
        CHECK(launch.blocks <= kBlocksMax);
      }
  CHECK(reduce_for(1, 1'000'000'000, false).splits == kSplitsMax);
  CHECK(reduce_for(1'000'000, 1000, false).splits == 1);
}

TEST_CASE("a row is processed from its first aligned address on") {
  uintptr_t both[] = {1008, 2000}, apart[] = {1008, 2004}, odd[] = {1004};
  RowPacks packs = row_packs<2>(10, 4, 4, both);
  CHECK((packs.head == 0 && packs.packs == 2));
  packs = row_packs<2>(10, 4, 4, apart);
  CHECK((packs.head == 0 && packs.packs == 0));
  packs = row_packs<1>(10, 4, 4, odd);
  CHECK((packs.head == 1 && packs.packs == 2));
  packs = row_packs<1>(1, 8, 2, odd);
  CHECK((packs.head == 1 && packs.packs == 0));
}

}  // namespace
}  // namespace flow::kernels
