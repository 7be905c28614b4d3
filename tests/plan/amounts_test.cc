// Resources by name.
#include "engine/plan/amounts.hpp"

#include <catch2/catch.hpp>

using namespace flow;

TEST_CASE("what has a good name and a number in bounds is a resource, sorted by name") {
  auto amounts = amounts_of({{"licence", 0.5}, {"fpga", 2}, {"a.b-c_9", 1e9}});
  REQUIRE(amounts.ok());
  CHECK(*amounts == Amounts{{"a.b-c_9", 1'000'000'000'000}, {"fpga", 2000}, {"licence", 500}});
  CHECK(are_sound(*amounts));
  CHECK(numbers_of(*amounts)[2] == std::pair<std::string, double>("licence", 0.5));
  CHECK(words_of(*amounts) == "a.b-c_9 = 1000000000, fpga = 2 and licence = 0.5");
  for (const char* wrong : {"", "a b", "a=b", "gpus", "cpus", "memory", "ü"}) {
    auto refused = amounts_of({{wrong, 1}});
    REQUIRE_FALSE(refused.ok());
    CHECK_THAT(refused.error().message, Catch::Contains(std::string("`") + wrong + "`"));
  }
  CHECK_FALSE(amounts_of({{std::string(65, 'a'), 1}}).ok());
  for (double wrong : {0.0, -1.0, 0.0004, 1e10, 0.0 / 0.0, 1.0 / 0.0})
    CHECK_FALSE(amounts_of({{"a", wrong}}).ok());
  auto twice = amounts_of({{"b", 1}, {"a", 1}, {"a", 2}});
  REQUIRE_FALSE(twice.ok());
  CHECK_THAT(twice.error().message, Catch::Contains("`a` is given twice"));
  std::vector<std::pair<std::string, double>> many;
  for (size_t i = 0; i <= kAmountsMax; i++) many.emplace_back("r" + std::to_string(i), 1);
  CHECK_FALSE(amounts_of(many).ok());
  CHECK_FALSE(are_sound({{"b", 1}, {"a", 1}}));
  CHECK_FALSE(are_sound({{"a", 0}}));
}

TEST_CASE("a host covers what it has enough of, of every name") {
  Amounts there{{"fpga", 2000}, {"licence", 500}};
  CHECK(covers(there, {}));
  CHECK(covers(there, {{"fpga", 2000}, {"licence", 500}}));
  CHECK_FALSE(covers(there, {{"fpga", 2001}}));
  CHECK_FALSE(covers(there, {{"dongle", 1}}));
  CHECK(times_in(there, {{"fpga", 300}, {"licence", 100}}, 9) == 5);
  CHECK(times_in(there, {}, 9) == 9);
  change(there, {{"fpga", 1500}, {"other", 1}}, -1);
  CHECK(there == Amounts{{"fpga", 500}, {"licence", 500}});
  CHECK(least_of(there, {{"fpga", 400}, {"licence", 900}}) ==
        Amounts{{"fpga", 400}, {"licence", 500}});
}

TEST_CASE("workers of one machine share its resources in whole units") {
  Amounts all{{"fpga", 5000}, {"licence", 1500}};
  CHECK(share_of(all, 1, 3) == Amounts{{"fpga", 2000}, {"licence", 1500}});
  CHECK(share_of(all, 2, 3) == Amounts{{"fpga", 2000}});
  CHECK(share_of(all, 3, 3) == Amounts{{"fpga", 1000}});
  CHECK(share_of({{"fpga", 1000}}, 2, 2).empty());
  CHECK(arguments_of(share_of(all, 1, 3)) ==
        std::vector<std::string>{"--resource", "fpga=2", "--resource", "licence=1.5"});
}
