// Random numbers: the published test vectors, the shape of the distributions, and no dependence on
// how many are asked for.
#include "kernels/cpu/random.hpp"

#include <algorithm>
#include <cmath>

#include "tests/kernels/reference.hpp"

namespace flow::cpu {
namespace {

TEST_CASE("Philox 4x32-10 gives the numbers of Random123's known answers") {
  using Block = std::array<uint32_t, 4>;
  CHECK(philox({0, 0, 0, 0}, {0, 0}) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
        Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a longer tensor of one seed begins with the shorter one") {
  Floats few(5), many(50);
  for (auto fill : {fill_uniform, fill_normal}) {
    fill(view_of(few, {5}), 42, 0, 1);
    fill(view_of(many, {50}), 42, 0, 1);
    CHECK(std::equal(few.begin(), few.end(), many.begin()));
  }
}

TEST_CASE("uniform and normal numbers have their mean and deviation") {
  constexpr int64_t count = 100'000;
  Floats values(count);
  auto moments = [&] {
    double sum = 0, squares = 0;
    for (float value : values) {
      sum += value;
      squares += double{value} * value;
    }
    double mean = sum / count;
    return std::pair(mean, std::sqrt(squares / count - mean * mean));
  };
  fill_uniform(view_of(values, {count}), 7, 2, 4);
  CHECK(*std::min_element(values.begin(), values.end()) >= 2);
  CHECK(*std::max_element(values.begin(), values.end()) < 4);
  auto [mean, deviation] = moments();
  check_near(mean, 3, 1, 0.01);
  check_near(deviation, 2 / std::sqrt(12), 1, 0.01);
  fill_normal(view_of(values, {count}), 7, -1, 3);
  std::tie(mean, deviation) = moments();
  check_near(mean, -1, 1, 0.05);
  check_near(deviation, 3, 1, 0.05);
}

TEST_CASE("a permutation has every number once, and another seed another order") {
  int64_t a[97], b[97], sorted[97];
  permutation(a, 97, 1);
  permutation(b, 97, 2);
  CHECK_FALSE(std::equal(a, a + 97, b));
  std::copy(a, a + 97, sorted);
  std::sort(sorted, sorted + 97);
  for (int64_t i = 0; i < 97; i++) CHECK(sorted[i] == i);
}

}  // namespace
}  // namespace flow::cpu
