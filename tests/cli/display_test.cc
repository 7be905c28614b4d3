// The display of an active run.
#include "engine/cli/display/display.hpp"

#include <catch2/catch.hpp>

#include "engine/cli/display/common.hpp"
#include "engine/cli/display/graph_text.hpp"
#include "engine/cli/display/result_text.hpp"
#include "engine/cli/display/terminal_frame.hpp"

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

CountedTask counted(const char* name, Counts counts) { return {name, counts}; }

Lines text_of(const std::vector<Line>& lines, size_t columns) {
  Lines texts;
  for (const Line& line : lines) texts.push_back(rendered(line, columns, false));
  return texts;
}

}  // namespace

TEST_CASE("the name of an awaited signal may contain backticks") {
  CHECK(awaited_signal("it waits for the signal `go`: `flow signal R go` sends it") == "go");
  CHECK(awaited_signal("it waits for the signal `go` until 2026-01-01T00:00:00Z: `flow signal R "
                       "go` sends it") == "go");
  CHECK(awaited_signal("it waits for the signal `a`: `b c`: `flow signal R 'a`: `b c'` sends it") ==
        "a`: `b c");
  CHECK(awaited_signal("it waits for a free CPU").empty());
}

TEST_CASE("a frame has a row per task, and counts") {
  RunView view("digits  R1", true);
  view.on_event(event("task", "train", "running", 1000));
  view.on_event(progress("train", 1500, 0.5, 0.25));
  view.on_event(event("task", "publish", "running", 1000));
  CHECK(view.on_event(event("task", "publish", "waiting", 1100, "approved")) ==
        Lines{"publish: waits for the signal `approved`: flow signal R1 approved"});
  CHECK(wait_text(event("task", "publish", "waiting", 1100, "Ann's word")) ==
        "waits for the signal `Ann's word`: flow signal R1 'Ann'\\''s word'");
  view.on_event(event("serving", "api", "running", 1200, "http://127.0.0.1:8080"));
  Counts align;
  align.succeeded = 3, align.cached = 1, align.failed = 2, align.ignored = 1, align.pending = 4;
  Counts running, waiting;
  running.running = waiting.waiting = 1;
  view.set_counts({counted("align", align), counted("train", running), counted("api", running),
                   counted("publish", waiting)});
  CHECK(
      text_of(view.frame(3000, 100, 24), 100) ==
      Lines{"digits  R1  running", "  align    ███████░░░░░  5/9  1 cached  1 failed  1 ignored",
            "  train    ██████░░░░░░  0/1  1 running  2.0s  50%  loss=0.25",
            "  api      ░░░░░░░░░░░░  0/1  1 running  serves at http://127.0.0.1:8080",
            "  publish  ░░░░░░░░░░░░  0/1  1 waiting  2.0s  waits for the signal `approved`: flow "
            "signal R1 appr…",
            "5/12 done (1 cached), 2 running, 1 waiting, 4 pending, 2 failed (1 ignored)  2.0s"});
}

TEST_CASE("a row is about all calls and instances of a task, and names the one that reports") {
  RunView view("digits  R1", true);
  Event tagged = event("task", "align[2]", "running", 1000);
  tagged.tag = "s2";
  view.on_event(event("task", "align#2", "running", 1000));
  view.on_event(tagged);
  tagged = progress("align[2]", 1500, 0.5, 0.25);
  tagged.tag = "s2";
  view.on_event(tagged);
  Counts counts;
  counts.running = 2;
  counts.ready = 10;
  view.set_counts({counted("align", counts)});
  CHECK(text_of(view.frame(3000, 100, 24), 100)[1] ==
        "  align  █░░░░░░░░░░░  0/12  2 running  2.0s  [s2] 50%  loss=0.25");
  Event metric = event("metric", "align#2", "", 1600);
  metric.data = Value::map({{Value("acc"), Value(0.5)}, {Value("step"), Value(int64_t{3})}});
  view.on_event(metric);
  CHECK(text_of(view.frame(3000, 100, 24), 100)[1].ends_with("  2.0s  #2 acc=0.5 step=3"));
  CHECK(without_numbers("sub#2[3]/align#2[s1]") == "sub/align");
}

TEST_CASE("a pipe shows that a dynamic task waits for its calls, and how it ended") {
  RunView view("p  R1");
  CHECK(view.on_event(event("task", "search", "running", 1000)) == Lines{"search: started"});
  CHECK(view.on_event(event("task", "search", "waiting", 1100)) ==
        Lines{"search: waits for its calls"});
  CHECK(view.on_event(event("task", "search", "succeeded", 1900)) == Lines{"search: succeeded"});
}

TEST_CASE("a frame is never larger than its place") {
  RunView view("a pipeline with quite a long name", true);
  std::vector<CountedTask> tasks;
  Counts counts;
  counts.running = 1;
  for (int i = 0; i < 50; i++) {
    std::string name = "a task with a name of length " + std::to_string(100 + i);
    view.on_event(event("task", name.c_str(), "running", 1000));
    tasks.push_back({name, counts});
  }
  view.set_counts(tasks);
  for (size_t height : {1u, 2u, 3u, 4u, 12u, 40u}) {
    for (size_t width : {1u, 10u, 79u}) {
      Lines lines = text_of(view.frame(2000, width, height), width);
      CHECK(lines.size() == std::min<size_t>(height, kRowsMax + 2));
      for (const std::string& line : lines) CHECK(columns_of(line) <= width);
    }
  }
  Lines lines = text_of(view.frame(2000, 79, 40), 79);
  CHECK(lines[kRowsMax] == "  … 31 more tasks");
}

TEST_CASE(
    "if there is too little room, what runs longest is shown, then failures, then the newest") {
  RunView view("p", true);
  Counts pending, running, failed, done;
  pending.pending = running.running = failed.failed = done.succeeded = 1;
  int64_t at = 1000;
  for (const char* name : {"old", "new", "bad"}) {
    view.on_event(event("task", name, "running", at += 100));
    view.on_event(
        event("task", name, name == std::string("bad") ? "failed" : "succeeded", at += 100));
  }
  view.on_event(event("task", "late", "running", 3000));
  view.on_event(event("task", "early", "running", 2000));
  view.set_counts({counted("next", pending), counted("old", done), counted("new", done),
                   counted("bad", failed), counted("late", running), counted("early", running)});
  auto names = [&](size_t height) {
    std::string names;
    for (const std::string& line : text_of(view.frame(4000, 50, height), 50))
      names += line.starts_with("  ") ? line.substr(2, line.find(' ', 2) - 2) + " " : "";
    return names;
  };
  CHECK(names(8) == "next old new bad late early ");
  CHECK(names(7) == "early late bad new … ");
  CHECK(names(4) == "early … ");
}

TEST_CASE("the time left is known once each task has ended a few times") {
  RunView view("p", true);
  for (int i = 0; i < 4; i++) {
    std::string name = "t[" + std::to_string(i) + "]";
    view.on_event(event("task", name.c_str(), "running", 1000 + i * 2000));
    if (i < 3) view.on_event(event("task", name.c_str(), "succeeded", 3000 + i * 2000));
  }
  Counts counts;
  counts.succeeded = 3;
  counts.running = 1;
  counts.ready = 10;
  view.set_counts({counted("t", counts)});
  CHECK(text_of(view.frame(8000, 79, 9), 79).back() ==
        "3/14 done, 1 running, 10 ready  7.0s, about 21.0s left");
  counts.pending = 1;
  view.set_counts({counted("t", counts), counted("unknown", counts)});
  CHECK(text_of(view.frame(8000, 79, 9), 79).back().ends_with("7.0s"));
}

TEST_CASE("a failure is explained once, with the line that the task wrote last") {
  RunView view("p");
  Event failed = event("task", "t", "failed", 3000, "p.lua:1: bad");
  failed.evidence = "p.lua:1: in function";
  failed.last_line = "reading sample 3";
  failed.attempt = 2;
  view.on_event(event("task", "t", "running", 1000));
  CHECK(view.on_event(failed) == Lines{"t: failed in 2.0s"});
  CHECK(view.failure(failed, 20) ==
        "`t` failed after 2 attempts: p.lua:1: bad\np.lua:1: in function\nlast line: reading …");
  failed.evidence = "stderr:\nreading sample 3";
  CHECK(view.failure(failed, 80) ==
        "`t` failed after 2 attempts: p.lua:1: bad\nstderr:\nreading sample 3");
  Event other = event("task", "m", "failed", 3000, "it depends on `t`, which failed");
  other.cause = "dependency";
  CHECK(view.on_event(other) == Lines{"m: failed: it depends on `t`, which failed"});
  CHECK_FALSE(view.failure(other, 80));
  Event ignored = failed;
  ignored.task = "i";
  ignored.ignored = true;
  CHECK(view.on_event(ignored) ==
        Lines{"i: failed (ignored): p.lua:1: bad", "  last line: reading sample 3"});
  CHECK_FALSE(view.failure(ignored, 80));
}

TEST_CASE("a line is cut by columns, and its colors end") {
  Line line = {{"ab", Color::red}, {"cd", Color::none}, {"ef", Color::green}};
  CHECK(rendered(line, 80, false) == "abcdef");
  CHECK(rendered(line, 80, true) == "\x1b[31mab\x1b[0mcd\x1b[32mef\x1b[0m");
  CHECK(rendered(line, 4, true) == "\x1b[31mab\x1b[0mc…");
  CHECK(shortened("漢字かな", 5) == "漢字…");
  CHECK(columns_of("漢字e\u0301") == 5);
}

TEST_CASE("only the lines of a frame that changed are written") {
  TerminalFrame frame;
  const std::string begin = "\x1b[?2026h", end = "\x1b[?2026l";
  CHECK(frame.draw({"one", "two"}, {80, 24}) ==
        begin + "\rone\x1b[K\r\n\rtwo\x1b[K\r\n\r\x1b[K" + end);
  CHECK(frame.draw({"one", "two"}, {80, 24}) == "");
  CHECK(frame.draw({"one", "2"}, {80, 24}) == begin + "\x1b[1A\r2\x1b[K\x1b[1B\r\x1b[K" + end);
  CHECK(frame.draw({"one"}, {80, 24}) == begin + "\x1b[1A\r\x1b[K\r\x1b[K" + end);
  CHECK(frame.draw({"one"}, {80, 24}, "above\n") ==
        begin + "\r\x1b[1A\x1b[K\x1b[B\x1b[K\x1b[1Aabove\n\rone\x1b[K\r\n\r\x1b[K" + end);
  // Narrower: "one" takes two rows.
  CHECK(frame.erase({2, 24}) == "\r\x1b[2A\x1b[K\x1b[B\x1b[K\x1b[B\x1b[K\x1b[2A");
  CHECK(frame.erase({2, 24}) == "");
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
        Lines{"train: failed in 2.0s"});
  CHECK(view.on_event(event("serving", "in/api#2", "running", 1, "http://127.0.0.1:1")) ==
        Lines{"in/api#2: serves at http://127.0.0.1:1",
              "  curl -s http://127.0.0.1:1/v2/models/api"});
  Event wrapped = event("serving", "in/llm", "running", 1, "http://127.0.0.1:2");
  wrapped.cause = "command";
  CHECK(view.on_event(wrapped) ==
        Lines{"in/llm: serves at http://127.0.0.1:2", "  curl -s http://127.0.0.1:2"});
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
  Event long_error = event("task", "t", "failed", 2, std::string(1'000'000, 'e'));
  long_error.ignored = true;
  Lines failed = view.on_event(long_error);
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
  plan.nodes = {{"a\"b", "a", "task", "", "", "", "", {}, {}},
                {"t#2", "t", "map", "", "", "", "", {"a\"b"}, {"a\"b"}}};
  CHECK(graph_dot(plan).find(R"("a\"b" -> "t#2" [style=dashed];)") != std::string::npos);
  CHECK(graph_mermaid(plan) ==
        "flowchart LR\n  n0[\"a#quot;b\"]\n  n1[[\"t#35;2\"]]\n  n0 --> n1\n  n0 -.-> n1\n");
  CHECK(from_json(graph_json(plan)).ok());
}

TEST_CASE("a tag labels its node in every format of a graph") {
  PlanInfo plan;
  plan.pipeline = "p";
  plan.nodes = {{"t#2", "t", "task", "s3", "", "", "", {}, {}}};
  CHECK(graph_dot(plan).find(R"("t#2" [shape=box, label="t[s3]"];)") != std::string::npos);
  CHECK(graph_mermaid(plan) == "flowchart LR\n  n0[\"t[s3]\"]\n");
  CHECK(graph_json(plan).find(R"({"name":"t#2","tag":"s3","task":"t")") != std::string::npos);
}

TEST_CASE("a table has the important columns that fit") {
  std::vector<std::vector<std::string>> rows = {{"run", "name", "rate", "loss"},
                                                {"r1", "first", "0.5", "7"}};
  std::vector<size_t> order = {0, 3, 1, 2};
  FittingColumns all = fitting_columns(rows, order, 22);
  CHECK(all.rows == rows);
  CHECK(all.omitted.empty());
  FittingColumns some = fitting_columns(rows, order, 21);
  CHECK(some.rows ==
        std::vector<std::vector<std::string>>{{"run", "name", "loss"}, {"r1", "first", "7"}});
  CHECK(some.omitted == std::vector<std::string>{"rate"});
  // A narrower column takes the place of a wide one; the first one always stays.
  CHECK(fitting_columns(rows, order, 15).rows.front() ==
        std::vector<std::string>{"run", "rate", "loss"});
  CHECK(fitting_columns(rows, order, 1).rows.front() == std::vector<std::string>{"run"});
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
  CHECK(result_text(result, 80).lines ==
        Lines{R"(result: {"list":["<f32 64x10>",1],"picture":"<a.png, 2.0 KiB>"})"});
  CHECK(columns_of(result_text(Value(std::string(5000, 'x')), 80).lines[0]) == 80);
}

TEST_CASE("a long result is a few lines") {
  Value::Table numbers, fields;
  for (int64_t i = 1; i <= 120; i++) {
    numbers.list.emplace_back(i);
    fields.fields.emplace_back(Value("field " + std::to_string(i)), Value(i));
  }
  ResultText list = result_text(Value(numbers), 40);
  CHECK(list.lines == Lines{"result: [120 items: 1, 2, 3, 4, 5, 6, …]"});
  CHECK(list.is_cut);
  Value both = Value::map({{"accuracy", 0.5}, {"numbers", Value(numbers)}});
  CHECK(result_text(both, 40).lines ==
        Lines{"result:", "  accuracy  0.5", "  numbers   [120 items: 1, 2, 3, 4, …]"});
  Lines many = result_text(Value(fields), 40).lines;
  CHECK(many.size() == kResultLinesMax);
  CHECK(many.back() == "  … 112 more fields");
  CHECK_FALSE(result_text(Value(int64_t{1}), 40).is_cut);
}
