// The field `traceparent`, with the examples and limits of the standard.
#include "engine/serve/http/trace_context.hpp"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

using namespace flow;

TEST_CASE("a traceparent is valid as the standard says, also of a later version") {
  const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736", parent = "00f067aa0ba902b7";
  const std::string valid = "00-" + trace + "-" + parent + "-01";
  CHECK(is_traceparent(valid));
  CHECK(trace_id_of(valid) == trace);
  CHECK(is_traceparent("00-" + trace + "-" + parent + "-00"));
  CHECK(is_traceparent("cc-" + trace + "-" + parent + "-01"));
  CHECK(is_traceparent("cc-" + trace + "-" + parent + "-01-what-the-future-adds"));
  CHECK(trace_id_of("").empty());
  const std::vector<std::string> malformed = {
      std::string(),
      "00",
      valid + "-",
      valid + "-more",
      valid.substr(1),
      valid + "0",
      "ff-" + trace + "-" + parent + "-01",
      "0x-" + trace + "-" + parent + "-01",
      "00-" + std::string(32, '0') + "-" + parent + "-01",
      "00-" + trace + "-" + std::string(16, '0') + "-01",
      "00-" + trace + "-" + parent + "-0g",
      "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + parent + "-01",
      "00_" + trace + "-" + parent + "-01",
      "00-" + trace + "_" + parent + "-01",
      "00-" + trace + "-" + parent + "_01",
      "cc-" + trace + "-" + parent + "-01.more",
      "cc-" + trace + "-" + parent + "-01-a b",
      "cc-" + trace + "-" + parent + "-01-" + std::string(1000, 'a')};
  for (const std::string& wrong : malformed) {
    INFO(wrong);
    CHECK_FALSE(is_traceparent(wrong));
  }
}
