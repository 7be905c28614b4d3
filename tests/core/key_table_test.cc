#include "engine/core/key_table.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <random>

using namespace flow;
using namespace flow::core;

namespace {

/// Keys that share prefixes, so that many collide in a small table.
Digest key_of(UnitId unit, uint32_t starts) {
  Digest key{};
  key.bytes[0] = static_cast<uint8_t>(unit % starts);
  key.bytes[28] = static_cast<uint8_t>(unit >> 24);
  key.bytes[29] = static_cast<uint8_t>(unit >> 16);
  key.bytes[30] = static_cast<uint8_t>(unit >> 8);
  key.bytes[31] = static_cast<uint8_t>(unit);
  return key;
}

}  // namespace

TEST_CASE("a key table is a map, also for keys with equal prefixes") {
  std::random_device device;
  uint32_t seed = device();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (uint32_t starts : {1u, 7u, 256u}) {
    for (UnitId range : {12u, 400u}) {
      KeyTable table;
      std::map<UnitId, KeyTable::Holder> expected;
      for (int i = 0; i < 4'000; i++) {
        UnitId unit = random() % range;
        Digest key = key_of(unit, starts);
        KeyTable::Holder holder{unit % 3, unit};
        if (expected.contains(unit)) {
          CHECK_FALSE(table.erase(key, {holder.first + 1, unit}));  // of another run
          REQUIRE(table.erase(key, holder));
          expected.erase(unit);
        } else {
          CHECK_FALSE(table.erase(key, holder));
          table.insert(key, holder);
          expected.emplace(unit, holder);
        }
        REQUIRE(table.size() == expected.size());
        UnitId other = random() % range;
        const KeyTable::Holder* found =
            table.find(key_of(other, starts),
                       [&](const KeyTable::Holder& each) { return key_of(each.second, starts); });
        REQUIRE((found != nullptr) == expected.contains(other));
        if (found != nullptr) REQUIRE(*found == expected.at(other));
      }
      std::vector<KeyTable::Holder> all;
      for (const auto& [unit, holder] : expected) all.push_back(holder);
      std::sort(all.begin(), all.end());
      CHECK(table.holders() == all);
      table.clear();
      CHECK(table.size() == 0);
      CHECK(table.holders().empty());
    }
  }
}
