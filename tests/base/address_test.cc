#include "engine/base/address.hpp"

#include <catch2/catch.hpp>

using namespace flow;

TEST_CASE("an address has a host and a port and is printed as it was read") {
  for (const char* text : {"127.0.0.1:7700", "node7.example:1", "[::1]:7700", "0.0.0.0:0"}) {
    CAPTURE(text);
    auto address = parse_address(text);
    REQUIRE(address.ok());
    CHECK(address_text(*address) == text);
  }
  CHECK(parse_address("[fe80::1]:7700")->host == "fe80::1");
  CHECK(parse_address("node7:65535")->port == 65535);
}

TEST_CASE("an invalid address is rejected") {
  using namespace std::string_literals;
  for (const std::string& text :
       {""s, ":"s, "node7"s, "node7:"s, ":7700"s, "node7:65536"s, "node7:-1"s, "node7:7 "s,
        "::1:7700"s, "[::1:7700"s, "[]:7700"s, "a b:7700"s, "a\0b:7700"s}) {
    CAPTURE(text);
    CHECK_FALSE(parse_address(text).ok());
  }
}
