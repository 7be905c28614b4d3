// The tables of `flow top`, and how it answers keys.
#include <catch2/catch.hpp>

#include "engine/cli/top/top_view.hpp"

using namespace flow;
using namespace flow::cli;

namespace {

TaskInfo task(const std::string& name, const std::string& status,
              const std::string& waits_for = "") {
  TaskInfo task;
  task.name = name;
  task.status = status;
  task.waits_for = waits_for;
  return task;
}

/// A run with `tasks`, and one that has ended before it.
std::shared_ptr<const ClusterView> view_of(std::vector<TaskInfo> tasks) {
  auto view = std::make_shared<ClusterView>();
  view->state = "/data/.flow";
  view->has_writer = true;
  RunInfo ended, run;
  ended.id = "run-1";
  ended.status = "succeeded";
  run.id = "run-2";
  run.status = "running";
  view->runs = {ended, run};
  run.tasks = std::move(tasks);
  view->run = std::move(run);
  return view;
}

/// The lines below the titles, without the last.
std::vector<std::string> rows_of(TopView& view, size_t rows = 12) {
  TopFrame frame = view.frame(80, rows, 0);
  std::vector<std::string> texts;
  for (size_t i = 4; i + 1 < frame.lines.size(); i++) {
    std::string text = rendered(frame.lines[i], 80, false);
    if (!text.empty()) texts.push_back(text.substr(0, text.find(' ')));
  }
  return texts;
}

std::string last_line(TopView& view) {
  return rendered(view.frame(80, 12, 0).lines.back(), 80, false);
}

void press(TopView& view, const std::string& keys) {
  for (char key : keys) view.on_key(static_cast<unsigned char>(key));
}

}  // namespace

TEST_CASE("the tasks that need attention come first") {
  TopView view;
  view.set_view(view_of({task("a", "succeeded"), task("b", "pending"), task("c", "failed"),
                         task("d", "waiting"), task("e", "running")}));
  view.on_key('2');
  CHECK(rows_of(view) == std::vector<std::string>{"e", "d", "c", "b", "a"});
  view.on_key('s');
  CHECK(rows_of(view) == std::vector<std::string>{"a", "b", "c", "d", "e"});
  view.on_key('r');
  CHECK(rows_of(view) == std::vector<std::string>{"e", "d", "c", "b", "a"});
}

TEST_CASE("a filter shows rows with a text, in any case, until Esc") {
  TopView view;
  view.set_view(
      view_of({task("align[1]", "running"), task("sort", "pending", "it waits for `Align`"),
               task("done", "succeeded")}));
  view.on_key('2');
  press(view, "/ALI");
  CHECK(rows_of(view) == std::vector<std::string>{"align[1]", "sort"});
  view.on_key(kBackspace);
  view.on_key(kEnter);
  CHECK(rows_of(view).size() == 2);
  view.on_key(kEscape);
  CHECK(rows_of(view).size() == 3);
}

TEST_CASE("only the rows on the screen are made of a hundred thousand tasks") {
  std::vector<TaskInfo> tasks;
  for (int i = 0; i < 100'000; i++)
    tasks.push_back(task("t[" + std::to_string(i) + "]", "pending"));
  TopView view;
  view.set_view(view_of(std::move(tasks)));
  view.on_key('2');
  CHECK(rows_of(view).size() == 7);
  view.on_key(kEnd);
  CHECK(rows_of(view).back() == "t[99999]");
  view.on_key(kPageUp);
  TopFrame frame = view.frame(80, 12, 0);
  REQUIRE(frame.highlighted < frame.lines.size());
  CHECK(rendered(frame.lines[frame.highlighted], 80, false).starts_with("t[99992]"));
}

TEST_CASE("the chosen row stays the same when the view is read again") {
  TopView view;
  view.set_view(view_of({task("a", "running"), task("b", "pending")}));
  view.on_key('2');
  view.on_key(kDown);
  view.set_view(view_of({task("z", "running"), task("a", "running"), task("b", "running")}));
  TopFrame frame = view.frame(80, 12, 0);
  REQUIRE(frame.highlighted < frame.lines.size());
  CHECK(rendered(frame.lines[frame.highlighted], 80, false).starts_with("b "));
}

TEST_CASE("a run is cancelled after a question, and only one that has not ended") {
  TopView view;
  view.set_view(view_of({task("a", "running")}));
  CHECK_FALSE(view.on_key('k').has_value());  // the newest run is first
  CHECK(last_line(view).find("cancel run-2?") == 0);
  CHECK_FALSE(view.on_key('x').has_value());
  CHECK(last_line(view) == "not cancelled");
  view.on_key('k');
  auto request = view.on_key('y');
  REQUIRE(request.has_value());
  CHECK(request->kind == TopRequest::Kind::cancel);
  CHECK(request->run == "run-2");
  view.on_key(kDown);
  CHECK_FALSE(view.on_key('k').has_value());
  CHECK(last_line(view) == "the run run-1 has ended: succeeded");
}

TEST_CASE("a signal has the name that a task waits for, and a value as JSON") {
  TopView view;
  view.set_view(view_of({task(
      "a", "waiting", "it waits for the signal `approved`: `flow signal R1 approved` sends it")}));
  view.on_key('g');
  CHECK(last_line(view) == "signal NAME [JSON]: approved_");
  press(view, " {");
  CHECK_FALSE(view.on_key(kEnter).has_value());
  CHECK(last_line(view).find("no signal was sent: its value is not JSON") == 0);
  view.on_key('g');
  press(view, " [1]");
  auto request = view.on_key(kEnter);
  REQUIRE(request.has_value());
  CHECK(request->kind == TopRequest::Kind::signal);
  CHECK(request->signal == "approved");
  CHECK(request->json == "[1]");
}

TEST_CASE("every size of a terminal has a frame that fits") {
  TopView view;
  std::vector<TaskInfo> tasks;
  for (int i = 0; i < 50; i++)
    tasks.push_back(task("a-rather-long-name[" + std::to_string(i) + "]", "pending",
                         "it waits\x1b[2J\nfor more"));
  view.set_view(view_of(std::move(tasks)));
  for (char tab = '1'; tab <= '6'; tab++) {
    view.on_key(static_cast<unsigned char>(tab));
    for (size_t rows = 1; rows < 40; rows++) {
      for (size_t columns : {1, 19, 20, 40, 200}) {
        TopFrame frame = view.frame(columns, rows, 0);
        CHECK(frame.lines.size() <= rows);
        for (const Line& line : frame.lines)
          for (const Span& span : fitted(line, columns))
            CHECK(span.text.find('\x1b') == std::string::npos);
      }
    }
  }
}
