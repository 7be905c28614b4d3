#include "engine/core/unit_set.hpp"

#include <catch2/catch.hpp>
#include <random>
#include <set>

using flow::kNoNode;
using namespace flow::core;

namespace {

void check_same(const UnitSet& units, const std::set<UnitId>& expected) {
  REQUIRE(units.size() == expected.size());
  CHECK(units.empty() == expected.empty());
  if (expected.empty()) return;
  UnitId unit = units.first();
  for (UnitId other : expected) {
    REQUIRE(unit == other);
    unit = units.after(unit);
  }
  CHECK(unit == kNoNode);
}

}  // namespace

TEST_CASE("a unit set is an ordered set") {
  std::random_device device;
  uint32_t seed = device();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  // Dense, with gaps of whole words, and with gaps of whole groups of words.
  for (UnitId range : {100u, 5'000u, 2'000'000u}) {
    UnitSet units;
    std::set<UnitId> expected;
    std::uniform_int_distribution<UnitId> any(0, range);
    for (int i = 0; i < 3'000; i++) {
      bool erases = !expected.empty() && random() % 3 == 0;
      if (erases) {
        // Half of the removals take the first unit, as the scheduler does.
        UnitId unit = random() % 2 == 0 ? *expected.begin() : any(random);
        CHECK(units.erase(unit) == (expected.erase(unit) == 1));
      } else {
        UnitId unit = any(random);
        CHECK(units.insert(unit) == expected.insert(unit).second);
      }
      UnitId probe = any(random);
      CHECK(units.contains(probe) == expected.contains(probe));
      auto above = expected.upper_bound(probe);
      CHECK(units.after(probe) == (above == expected.end() ? kNoNode : *above));
      if (i % 100 == 0) check_same(units, expected);
    }
    check_same(units, expected);
  }
}

TEST_CASE("unit sets are equal regardless of removed units") {
  UnitSet a, b;
  for (UnitId unit : {70u, 3u, 100'000u}) a.insert(unit);
  a.erase(100'000);
  b.insert(3);
  CHECK_FALSE(a == b);
  b.insert(70);
  CHECK(a == b);
  CHECK(b == a);
}
