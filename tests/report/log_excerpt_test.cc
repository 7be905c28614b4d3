#include "engine/report/log_excerpt.hpp"

#include <catch2/catch.hpp>

#include "engine/page/page_json.hpp"

using namespace flow;

namespace {

LogLine line_of(const std::string& task, uint32_t attempt, int64_t at_ms, const std::string& text) {
  LogLine line;
  line.task = task;
  line.attempt = attempt;
  line.at_ms = at_ms;
  line.text = text;
  return line;
}

}  // namespace

TEST_CASE("a report has the last lines of the run and of its detailed tasks, and counts all") {
  LogLine a1 = line_of("a", 1, 1, "one"), a2 = line_of("a", 2, 2, "two"),
          a3 = line_of("a", 2, 3, "three"), b1 = line_of("b", 1, 9, "last"),
          b2 = line_of("b", 1, 8, "before"), c1 = line_of("c", 1, 4, "early");
  LogExcerpt log({2, 1000}, {2, 1000});
  for (const LogLine& line : {a1, a2, a3}) log.add(line, true);
  for (const LogLine& line : {b1, b2, c1}) log.add(line, false);
  CHECK(log.json() ==
        R"({"total":6,"counts":{"a":{"1":1,"2":2},"b":{"1":2},"c":{"1":1}},"lines":[)" +
            page_log_line(a2) + "," + page_log_line(a3) + "," + page_log_line(b2) + "," +
            page_log_line(b1) + "]}");
}

TEST_CASE("the bytes of a log are bounded, and those of a line") {
  LogExcerpt log({100, 8}, {100, 4});
  for (int i = 0; i < 5; i++) log.add(line_of("a", 1, i, "1234"), true);
  std::string json = log.json();
  CHECK(json.starts_with(R"({"total":5,"counts":{"a":{"1":5}},)"));
  size_t lines = 0;
  for (size_t at = json.find("1234"); at != std::string::npos; at = json.find("1234", at + 1))
    lines++;
  CHECK(lines == 2);
  LogExcerpt one({100, 10'000}, {100, 10'000});
  one.add(line_of("a", 1, 1, std::string(LogExcerpt::kTextMax + 50, 'x')), true);
  CHECK(one.json().size() < LogExcerpt::kTextMax + 300);
}
