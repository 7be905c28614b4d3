// Which workers a label expression selects, and the errors of invalid expressions.
#include "engine/plan/worker_selector.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

bool holds(const std::string& text, const Labels& labels) {
  auto parsed = WorkerSelector::parse(text);
  REQUIRE(parsed.ok());
  CHECK(matches_selector(text, labels) == parsed->matches(labels));
  return parsed->matches(labels);
}

std::string wrong(const std::string& text) {
  auto parsed = WorkerSelector::parse(text);
  CHECK(!matches_selector(text, {{"a", "b"}}));
  return parsed.ok() ? "" : parsed.error().message;
}

const Labels kLabels = {{"disk", "ssd"}, {"rack", "a 1"}, {"shared", ""}};

}  // namespace

TEST_CASE("a label exists, has a value, or is missing") {
  CHECK(holds("disk", kLabels));
  CHECK(holds("shared", kLabels));
  CHECK(!holds("gpu", kLabels));
  CHECK(holds("disk == ssd", kLabels));
  CHECK(holds("disk=='ssd'", kLabels));
  CHECK(holds("rack == \"a 1\"", kLabels));
  CHECK(holds("shared == ''", kLabels));
  CHECK(holds("disk=ssd", kLabels));
  CHECK(!holds("disk == SSD", kLabels));
  CHECK(!holds("disk != ssd", kLabels));
  CHECK(holds("gpu != h200", kLabels));
  CHECK(!holds("gpu == ''", kLabels));
  CHECK(matches_selector("", {}));
}

TEST_CASE("not binds tighter than and, which binds tighter than or") {
  CHECK(holds("gpu or disk and shared", kLabels));
  CHECK(holds("shared or disk and gpu", kLabels));
  CHECK(!holds("(shared or disk) and gpu", kLabels));
  CHECK(!holds("not disk or gpu", kLabels));
  CHECK(holds("not (disk and gpu)", kLabels));
  CHECK(holds("not not disk", kLabels));
  CHECK(holds("not disk == hdd and not gpu", kLabels));
}

TEST_CASE("an invalid expression is an error with the missing part and its position") {
  CHECK(wrong("disk ==") == "has to have a value, a word or in quotes, at letter 8, where it ends");
  CHECK(wrong("disk == ssd gpu") ==
        "has to have `and`, `or` or the end at letter 13, where there is `gpu`");
  CHECK_THAT(wrong("disk '' and rack == b"),
             Catch::Matchers::StartsWith("has to have `and`, `or`"));
  CHECK(wrong("(disk") == "has to have `)` at letter 6, where it ends");
  CHECK(wrong("and disk") == "has to have the name of a label at letter 1, where there is `and`");
  CHECK(wrong("\"disk\" == ssd") ==
        "has to have the name of a label at letter 1, where there is `disk`");
  CHECK(wrong("   ") == "has to have the name of a label at letter 4, where it ends");
  CHECK(wrong("disk == 'ssd") == "lacks the closing ' of the text that begins at character 9");
  CHECK(wrong(std::string(60, '(') + "a" + std::string(60, ')')) == "is nested more than 50 deep");
  CHECK(wrong(std::string(1001, 'a')) == "has 1001 letters, and may have 1000");
}
