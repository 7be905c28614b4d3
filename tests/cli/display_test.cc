// The display of an active run.
#include "engine/cli/display/display.hpp"

#include <catch2/catch.hpp>

#include "engine/cli/display/common.hpp"
#include "engine/cli/display/graph_text.hpp"

using namespace flow;
using namespace flow::cli;
using Lines = std::vector<std::string>;

namespace {

Event event(const char* type, const char* task, const char* status, int64_t at_ms,
            std::string text = "") {
  Event e;
  e.type = type;
  e.run = "R1";
  e.task = task;
  e.status = status;
  e.at_ms = at_ms;
  e.text = std::move(text);
  e.attempt = 1;
  return e;
}

Event progress(const char* task, int64_t at_ms, double fraction, double loss) {
  Event e = event("progress", task, "", at_ms);
  e.fraction = fraction;
  e.data = Value::map({{Value("loss"), Value(loss)}});
  return e;
}

}  // namespace

TEST_CASE("a frame shows services, running tasks with progress, waiting tasks, and counts") {
  RunView view("digits  R1");
  view.on_event(event("task", "train", "running", 1000));
  view.on_event(progress("train", 1500, 0.5, 0.25));
  view.on_event(event("task", "publish", "running", 1000));
  view.on_event(event("task", "publish", "waiting", 1100, "approved"));
  view.on_event(event("serving", "api", "running", 1200, "http://127.0.0.1:8080"));
  Counts counts;
  counts.succeeded = 3;
  counts.cached = 1;
  counts.running = 2;
  counts.waiting = 1;
  counts.pending = 4;
  CHECK(view.frame(counts, 3000, 100, 24) ==
        Lines{"digits  R1  running  2.0s", "  api      serves at http://127.0.0.1:8080",
              "  train    ██████████░░░░░░░░░░  50%  loss=0.25  2.0s",
              "  publish  waits for the signal `approved`: flow signal R1 approved",
              "3 done (1 cached), 2 running, 1 waiting, 4 pending"});
}

TEST_CASE("a pipe shows that a dynamic task waits for its calls, and how it ended") {
  RunView view("p  R1");
  CHECK(view.on_event(event("task", "search", "running", 1000)) == Lines{"search: started"});
  CHECK(view.on_event(event("task", "search", "waiting", 1100)) ==
        Lines{"search: waits for its calls"});
  CHECK(view.on_event(event("task", "search", "succeeded", 1900)) == Lines{"search: succeeded"});
}

TEST_CASE("a frame is never larger than the terminal") {
  RunView view("a pipeline with quite a long name");
  for (int i = 0; i < 50; i++) {
    view.on_event(event("task", ("a task with a name of length " + std::to_string(100 + i)).c_str(),
                        "running", 1000));
  }
  for (size_t height : {1u, 3u, 4u, 12u, 40u}) {
    for (size_t width : {1u, 10u, 79u}) {
      Lines lines = view.frame(Counts{}, 2000, width, height);
      CHECK(lines.size() <= std::max<size_t>(height, 3));
      for (const std::string& line : lines) CHECK(columns_of(line) <= width);
    }
  }
  Lines lines = view.frame(Counts{}, 2000, 79, 40);
  CHECK(lines.size() == 2 + kFrameTasksMax);
  CHECK(lines[kFrameTasksMax] == "  … 41 more");
}

TEST_CASE("a task's text cannot control the terminal") {
  CHECK(shortened("a\x1b[2Jb\tc", 80) == "a [2Jb c");
  CHECK(shortened("first\nsecond", 80) == "first…");
  CHECK(shortened("größer", 4) == "grö…");
  CHECK(shortened("a\xc2\x9b[2Jb", 80) == "a [2Jb");
  CHECK(shortened("\xc2\x9b\xc2\x9b\xc2\x9b", 2) == " …");
  CHECK(printable("a\x1b[2J\xc2\x9b"
                  "b\xc2\xa0\tö\n") == "a\\x1b[2J\\u009bb\xc2\xa0\tö\n");
  CHECK(printable("cut \xc2") == "cut \xc2");
}

TEST_CASE("a pipe gets one line per event, and progress once per second") {
  RunView view("digits");
  CHECK(view.on_event(event("task", "train", "running", 1000)) == Lines{"train: started"});
  CHECK(view.on_event(progress("train", 1100, 0.1, 2)) == Lines{"train:  10% loss=2"});
  CHECK(view.on_event(progress("train", 1900, 0.2, 1)) == Lines{});
  CHECK(view.on_event(progress("train", 2100, 0.3, 0.5)) == Lines{"train:  30% loss=0.5"});
  CHECK(view.on_event(event("task", "train", "failed", 3000, "train.lua:1: bad\ntraceback")) ==
        Lines{"train: failed in 2.0s: train.lua:1: bad"});
  CHECK(view.on_event(event("serving", "in/api#2", "running", 1, "http://127.0.0.1:1")) ==
        Lines{"in/api#2: serves at http://127.0.0.1:1",
              "  curl -s http://127.0.0.1:1/v2/models/api"});
}

TEST_CASE("many or large metrics are one line of bounded length") {
  Value::Table metrics, table;
  for (int64_t i = 0; i < 100'000; i++) {
    metrics.fields.emplace_back(Value("m" + std::to_string(100'000 + i)), Value(i));
    table.list.emplace_back(i);
  }
  std::string many = metrics_text(Value(metrics));
  CHECK(many.starts_with("m100000=0 m100001=1 "));
  CHECK(many.ends_with(" m100019=19 … 99980 more"));
  CHECK(metrics_text(Value::map({{"all", Value(table)}})) == "all=<100000 items>");
  CHECK(metrics_text(Value::map({{"few", Value::list({Value(int64_t{1}), Value(int64_t{2})})}})) ==
        "few=[1,2]");
  std::string nested = metrics_text(Value::map({{"deep", Value::list({Value(table)})}}));
  CHECK(columns_of(nested) == std::string("deep=").size() + 40);
  std::string named = metrics_text(Value::map({{std::string(1'000'000, 'x'), Value(int64_t{1})}}));
  CHECK(columns_of(named) == 40 + 2);

  RunView view("digits");
  view.on_event(event("task", "t", "running", 1));
  Lines failed = view.on_event(event("task", "t", "failed", 2, std::string(1'000'000, 'e')));
  REQUIRE(failed.size() == 1);
  CHECK(columns_of(failed[0]) < 400);
}

TEST_CASE("lines about cached tasks are limited in a pipe") {
  RunView view("digits");
  size_t lines = 0;
  for (int i = 0; i < 1000; i++) {
    Event cached = event("task", "t", "succeeded", 1);
    cached.cached = true;
    lines += view.on_event(cached).size();
  }
  CHECK(lines == kCachedLinesMax);
}

TEST_CASE("durations and sizes are formatted for people") {
  CHECK(format_duration(0) == "0ms");
  CHECK(format_duration(999) == "999ms");
  CHECK(format_duration(1999) == "1.9s");
  CHECK(format_duration(59'999) == "59.9s");
  CHECK(format_duration(61'000) == "1m 1s");
  CHECK(format_duration(3'900'000) == "1h 5m");
  CHECK(format_duration(273'600'000) == "3d 4h");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1536) == "1.5 KiB");
  CHECK(parse_duration("--grace", "1h30m") == 5'400'000);
  CHECK(parse_duration("--grace", "1.5s") == 1500);
  CHECK(parse_duration("--grace", "0") == 0);
  for (const char* wrong : {"", "10", "s", "10x", "1..5s", "-5s", "1e9d", "99999999999999d"}) {
    CHECK_THROWS_AS(parse_duration("--grace", wrong), Failed);
  }
}

TEST_CASE("a task that failed before its first attempt did not run") {
  RunInfo run;
  run.counts.succeeded = 3;
  run.counts.cached = 1;
  run.counts.failed = 2;
  for (uint32_t attempts : {1u, 0u, 0u}) {  // the last attempt is a join, which does not count
    TaskInfo task;
    task.status = "failed";
    task.attempts = attempts;
    run.tasks.push_back(task);
  }
  CHECK(summary_line(run, 1, 0) == "5 tasks: 1 cached, 3 ran, 0 retried, 2 failed; 1ms; state 0 B");
}

TEST_CASE("names are quoted in every format of a graph") {
  PlanInfo plan;
  plan.pipeline = "p";
  plan.nodes = {{"a\"b", "a", "task", "", "", {}, {}},
                {"t#2", "t", "map", "", "", {"a\"b"}, {"a\"b"}}};
  CHECK(graph_dot(plan).find(R"("a\"b" -> "t#2" [style=dashed];)") != std::string::npos);
  CHECK(graph_mermaid(plan) ==
        "flowchart LR\n  n0[\"a#quot;b\"]\n  n1[[\"t#35;2\"]]\n  n0 --> n1\n  n0 -.-> n1\n");
  CHECK(from_json(graph_json(plan)).ok());
}

TEST_CASE("a result is shown with tensors and files abbreviated") {
  Tensor weights;
  weights.dtype = DType::f32;
  weights.shape = {64, 10};
  File picture;
  picture.name = "a.png";
  picture.size = 2048;
  Value result =
      Value::map({{"list", Value::list({Value(weights), Value(1)})}, {"picture", Value(picture)}});
  CHECK(result_text(result) == R"({"list":["<f32 64x10>",1],"picture":"<a.png, 2.0 KiB>"})");
  CHECK(columns_of(result_text(Value(std::string(5000, 'x')))) <= 2001);
}
