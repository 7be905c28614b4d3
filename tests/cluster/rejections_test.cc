#include "engine/cluster/session/rejections.hpp"

#include <catch2/catch.hpp>

namespace flow::cluster {
namespace {

constexpr int64_t kSecond = 1'000'000;

TEST_CASE(
    "the first rejection of an address is reported at once, later ones once per minute with their "
    "number") {
  RejectionLog rejections;
  CHECK(*rejections.add("10.0.0.7:1 (tcp)", "a", 0) == "a");
  for (int64_t i = 1; i < 60; i++)
    CHECK_FALSE(rejections.add("10.0.0.7:2 (tcp)", "b", i * kSecond));
  CHECK(*rejections.add("10.0.0.7:3 (tcp)", "c", 60 * kSecond) ==
        "c (59 more of 10.0.0.7 were rejected since the last report)");
  CHECK_FALSE(rejections.add("10.0.0.7:4 (tcp)", "d", 61 * kSecond));
  CHECK(*rejections.add("10.0.0.7:5 (tcp)", "e", 1000 * kSecond) ==
        "e (1 more of 10.0.0.7 were rejected since the last report)");
  CHECK(*rejections.add("10.0.0.7:5 (tcp)", "f", 2000 * kSecond) == "f");
}

TEST_CASE("rejections of one address do not hide those of another") {
  RejectionLog rejections;
  CHECK(rejections.add("10.0.0.7:1 (tcp)", "a", 0).has_value());
  CHECK(rejections.add("10.0.0.8:1 (tcp)", "b", 0).has_value());
  CHECK(rejections.add("[::1]:1 (tcp)", "c", 0).has_value());
  CHECK_FALSE(rejections.add("[::1]:2 (tcp)", "d", 1).has_value());
}

TEST_CASE("addresses beyond the limit count as one until others are forgotten") {
  RejectionLog rejections;
  for (size_t i = 0; i < kRejectionHostsMax; i++)
    CHECK(rejections.add("h" + std::to_string(i) + ":1", "x", 0).has_value());
  CHECK(rejections.add("new1:1", "x", 0).has_value());
  CHECK_FALSE(rejections.add("new2:1", "x", 0).has_value());
  CHECK_FALSE(rejections.add("new3:1", "x", 0).has_value());
  CHECK(*rejections.add("new4:1", "y", 60 * kSecond) == "y");
  CHECK(*rejections.add("new5:1", "y", 60 * kSecond) == "y");
}

}  // namespace
}  // namespace flow::cluster
