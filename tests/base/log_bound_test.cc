// The part of a log that is kept if it exceeds its bound.
#include "engine/base/log_bound.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

/// The resulting log: lines logged immediately, then lines logged at the end.
std::vector<std::string> logged(LogBound& bound, const std::vector<std::string>& texts) {
  std::vector<std::string> all;
  int64_t at = 0;
  for (const std::string& text : texts)
    if (auto entry = bound.add({1, text, ++at})) all.push_back(entry->text);
  for (LogBound::Entry& entry : bound.finish()) all.push_back(std::move(entry.text));
  return all;
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("a log within its bound is kept whole") {
  LogBound bound(10, 10);
  CHECK(logged(bound, {"one", "two"}) == Texts{"one", "two"});
  CHECK(bound.finish().empty());
}

TEST_CASE("a log over its bound keeps its beginning and its end, and counts the lines between") {
  LogBound bound(8, 8);
  CHECK(logged(bound, {"one", "two", "3", "four\nfive", "six", "seven", "8", "9"}) ==
        Texts{"one", "two",
              "5 lines (22 B) dropped here: of an attempt's log the first 8 B and the last 8 B are "
              "kept",
              "8", "9"});
}

TEST_CASE("nothing is dropped if the rest fits into the end") {
  LogBound bound(4, 8);
  CHECK(logged(bound, {"one", "two", "six"}) == Texts{"one", "two", "six"});
}

TEST_CASE("parts of one line count once, and empty lines count too") {
  LogBound bound(0, 2);
  CHECK_FALSE(bound.add({0, "part", 1}, false));
  CHECK_FALSE(bound.add({0, "rest", 2}));
  CHECK_FALSE(bound.add({0, "", 3}));
  CHECK_FALSE(bound.add({0, "", 4}));
  CHECK_FALSE(bound.add({0, "x", 5}));
  auto rest = bound.finish();
  REQUIRE(rest.size() == 2);
  CHECK(rest[0].text.starts_with("3 lines (12 B) dropped"));
  CHECK(rest[0].at_ms == 5);
  CHECK(rest[1].text == "x");
}
