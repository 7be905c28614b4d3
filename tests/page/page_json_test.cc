#include "engine/page/page_json.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

using namespace flow;

namespace {

RunInfo run_of(const std::string& id, const std::string& status, const std::string& name = "") {
  RunInfo run;
  run.id = id;
  run.status = status;
  run.name = name;
  run.pipeline = "digits";
  return run;
}

std::string row_of_run(const std::string& id, const std::string& status, const std::string& name) {
  return page_run_row(run_of(id, status, name));
}

LogLine line_of(const std::string& text) {
  LogLine line;
  line.task = "train";
  line.attempt = 2;
  line.stream = 2;
  line.at_ms = 1'795'238'220'000;
  line.text = text;
  return line;
}

}  // namespace

TEST_CASE("runs are listed newest first, and a filter counts all that match") {
  std::vector<RunInfo> runs = {run_of("r1", "failed", "Nightly"), run_of("r2", "succeeded"),
                               run_of("r3", "failed", "nightly")};
  CHECK(page_runs(runs, {"NIGHT", "failed"}, 1) ==
        R"({"total":3,"matching":2,"runs":[)" + row_of_run("r3", "failed", "nightly") + "]}");
  CHECK(page_runs(runs, {"", "succeeded"}, 10) ==
        R"({"total":3,"matching":1,"runs":[)" + row_of_run("r2", "succeeded", "") + "]}");
  CHECK(page_runs(runs, {"lr", ""}, 10) == R"({"total":3,"matching":0,"runs":[]})");
}

TEST_CASE("a row has neither tasks nor the result") {
  RunInfo run = run_of("r1", "succeeded");
  run.result = Value("large");
  run.tasks.emplace_back();
  std::string row = page_run_row(run);
  CHECK(row.find("tasks") == std::string::npos);
  CHECK(row.find(R"("result":null)") != std::string::npos);
}

TEST_CASE("the row of a task is that of the run's object") {
  RunInfo run = run_of("r1", "failed");
  TaskInfo task;
  task.name = "train[2]";
  task.status = "failed";
  task.error = R"(it said ,"tasks":[ and ended)";
  run.tasks.push_back(task);
  std::string whole = run.json(), begin = "\"tasks\":[";
  size_t at = whole.find(begin) + begin.size();
  std::string row = whole.substr(at, whole.size() - at - 2);
  CHECK(page_task(run, task, "why\nnot") ==
        R"({"run":"r1","status":"failed","task":)" + row + R"(,"fraction":null,"why":"why\nnot"})");
}

TEST_CASE("the last lines of a log that match, with bytes that are not text replaced") {
  std::vector<LogLine> lines = {line_of("Epoch 1"), line_of("other"), line_of("epoch \xff")};
  LogTail tail(1);
  for (const LogLine& line : lines) tail.add(line, page_contains(line.text, "EPOCH"));
  CHECK(page_logs(tail) ==
        R"({"total":3,"matching":2,"lines":[{"task":"train","tag":null,"attempt":2,"rank":0,)"
        R"("stream":"stderr","at":"2026-11-21T05:17:00.000Z","text":"epoch )"
        "\xef\xbf\xbd\"}]}");
}

TEST_CASE("of many lines in any order only the last ones are kept, by time") {
  LogTail tail(3);
  for (int64_t i = 0; i < 1000; i++) {
    LogLine line = line_of(std::to_string(i));
    line.at_ms = i * 7 % 1000 / 2;  // two of each time
    tail.add(line, i % 10 != 9);
    REQUIRE(tail.lines().size() <= 3);
  }
  CHECK(tail.total() == 1000);
  CHECK(tail.matching() == 900);
  std::vector<std::string> texts;
  for (const auto& [at, line] : tail.lines()) texts.push_back(line.text);
  // i * 7 % 1000 is 999 for 857, 998 for 714 and 997 for 571.
  CHECK(texts == std::vector<std::string>{"571", "714", "857"});
  LogTail none(0);
  none.add(line_of("a"), true);
  CHECK(none.matching() == 1);
  CHECK(none.lines().empty());
}

TEST_CASE("the last lines of a log are bounded in bytes, too") {
  LogTail tail(1'000);
  const size_t bytes = LogTail::kTextMax / 4;
  for (int64_t i = 0; i < 10; i++) {
    LogLine line = line_of(std::string(bytes, 'x'));
    line.at_ms = i;
    tail.add(std::move(line), true);
  }
  CHECK(tail.matching() == 10);
  REQUIRE(tail.lines().size() == 4);
  CHECK(tail.lines().begin()->first.first == 6);
  LogLine early = line_of("early");
  early.at_ms = 1;
  tail.add(std::move(early), true);
  CHECK(tail.lines().begin()->first.first == 6);  // no gap
  LogLine large = line_of(std::string(2 * LogTail::kTextMax, 'x'));
  large.at_ms = 10;
  tail.add(std::move(large), true);
  CHECK(tail.lines().size() == 1);
}

TEST_CASE("of many points the extremes of equal parts are sent, and NaN as null") {
  MetricSeries series;
  series.task = "train";
  series.metric = "loss";
  for (int64_t step = 0; step <= 10; step++)
    series.points.push_back({step, step == 5 ? std::nan("") : 1.0, step});
  series.points[3].value = 100;
  series.points[8].value = -100;
  series.min = -100, series.max = 100, series.best = -100;
  CHECK(page_metrics({series}, 5) ==
        R"({"series":[{"task":"train","tag":null,"metric":"loss","total":11,"min":-100,"max":100,)"
        R"("best":-100,"last":1,"points":[[0,1,0],[3,100,3],[5,null,5],[8,-100,8],[10,1,10]]}]})");
}

TEST_CASE("a series of thousands of points keeps its spike within the limit") {
  MetricSeries series;
  for (int64_t step = 0; step < 3'000; step++)
    series.points.push_back({step, step == 1'501 ? 1'000.0 : 1.0, step});
  series.points.back().value = std::nan("");
  std::string json = page_metrics({series}, 500);
  CHECK(json.find("[1501,1000,1501]") != std::string::npos);
  CHECK(json.find(R"("last":"nan")") != std::string::npos);
  CHECK(std::ranges::count(json, '[') <= 500 + 2);
}

TEST_CASE("earlier attempts have their times, and null for what is not known") {
  EarlierAttempts earlier;
  earlier.total = 7;
  EarlierAttempt& failed = earlier.list.emplace_back();
  failed.task = "train[2]";
  failed.row.attempt = 1;
  failed.row.assigned = 1'000;
  failed.row.ended = 2'500;
  failed.row.queue_us = 1'500'000;
  failed.row.worker = "w1";
  failed.row.outcome = "failed";
  failed.row.cause = "exit_code";
  failed.row.ranks = 4;
  EarlierAttempt& stopped = earlier.list.emplace_back();
  stopped.task = "a\"b";
  stopped.row.attempt = 3;
  stopped.row.outcome = "stopped";
  CHECK(
      page_attempts(earlier) ==
      R"({"total":7,"attempts":[{"task":"train[2]","attempt":1,"outcome":"failed","cause":"exit_code",)"
      R"("worker":"w1","started":1000,"finished":2500,"queue_s":1.500,"ranks":4},{"task":"a\"b",)"
      R"("attempt":3,"outcome":"stopped","cause":null,"worker":"","started":0,"finished":0,)"
      R"("queue_s":null,"ranks":1}]})");
  CHECK(page_attempts({}) == R"({"total":0,"attempts":[]})");
}
