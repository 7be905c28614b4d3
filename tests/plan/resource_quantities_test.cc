// Custom resources.
#include "engine/plan/resource_quantities.hpp"

#include <catch2/catch.hpp>

using namespace flow;

TEST_CASE("valid names with bounded numbers are resources, sorted by name") {
  auto quantities = quantities_of({{"licence", 0.5}, {"fpga", 2}, {"a.b-c_9", 1e9}});
  REQUIRE(quantities.ok());
  CHECK(*quantities ==
        ResourceQuantities{{"a.b-c_9", 1'000'000'000'000}, {"fpga", 2000}, {"licence", 500}});
  CHECK(are_sound(*quantities));
  CHECK(numbers_of(*quantities)[2] == std::pair<std::string, double>("licence", 0.5));
  CHECK(words_of(*quantities) == "a.b-c_9 = 1000000000, fpga = 2 and licence = 0.5");
  for (const char* wrong : {"", "a b", "a=b", "gpus", "cpus", "memory", "ü"}) {
    auto refused = quantities_of({{wrong, 1}});
    REQUIRE_FALSE(refused.ok());
    CHECK_THAT(refused.error().message, Catch::Contains(std::string("`") + wrong + "`"));
  }
  CHECK_FALSE(quantities_of({{std::string(65, 'a'), 1}}).ok());
  for (double wrong : {0.0, -1.0, 0.0004, 1e10, 0.0 / 0.0, 1.0 / 0.0})
    CHECK_FALSE(quantities_of({{"a", wrong}}).ok());
  auto twice = quantities_of({{"b", 1}, {"a", 1}, {"a", 2}});
  REQUIRE_FALSE(twice.ok());
  CHECK_THAT(twice.error().message, Catch::Contains("`a` is given twice"));
  std::vector<std::pair<std::string, double>> many;
  for (size_t i = 0; i <= kCustomResourcesMax; i++) many.emplace_back("r" + std::to_string(i), 1);
  CHECK_FALSE(quantities_of(many).ok());
  CHECK_FALSE(are_sound({{"b", 1}, {"a", 1}}));
  CHECK_FALSE(are_sound({{"a", 0}}));
}

TEST_CASE("a worker covers a request if it has enough of every name") {
  ResourceQuantities there{{"fpga", 2000}, {"licence", 500}};
  CHECK(fits(there, {}));
  CHECK(fits(there, {{"fpga", 2000}, {"licence", 500}}));
  CHECK_FALSE(fits(there, {{"fpga", 2001}}));
  CHECK_FALSE(fits(there, {{"dongle", 1}}));
  CHECK(how_many_fit(there, {{"fpga", 300}, {"licence", 100}}, 9) == 5);
  CHECK(how_many_fit(there, {}, 9) == 9);
  add(there, {{"fpga", 1500}, {"other", 1}}, -1);
  CHECK(there == ResourceQuantities{{"fpga", 500}, {"licence", 500}});
  CHECK(element_min(there, {{"fpga", 400}, {"licence", 900}}) ==
        ResourceQuantities{{"fpga", 400}, {"licence", 500}});
}

TEST_CASE("workers of one machine share its resources in whole units") {
  ResourceQuantities all{{"fpga", 5000}, {"licence", 1500}};
  CHECK(split(all, 1, 3) == ResourceQuantities{{"fpga", 2000}, {"licence", 1500}});
  CHECK(split(all, 2, 3) == ResourceQuantities{{"fpga", 2000}});
  CHECK(split(all, 3, 3) == ResourceQuantities{{"fpga", 1000}});
  CHECK(split({{"fpga", 1000}}, 2, 2).empty());
  CHECK(arguments_of(split(all, 1, 3)) ==
        std::vector<std::string>{"--resource", "fpga=2", "--resource", "licence=1.5"});
}
