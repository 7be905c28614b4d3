#include "engine/page/task_table.hpp"

#include <catch2/catch.hpp>

using namespace flow;

namespace {

RunInfo run_of(const std::vector<std::string>& states) {
  RunInfo run;
  run.id = "run-1";
  run.status = "running";
  for (const std::string& state : states) {
    TaskInfo task;
    task.name = "work[" + std::to_string(run.tasks.size() + 1) + "]";
    task.status = state;
    run.tasks.push_back(task);
  }
  return run;
}

/// The text of the field, up to the next one.
std::string rows_in(const std::string& json) { return json.substr(json.find("\"rows\":")); }

std::string row(int index, const std::string& state) {
  return "[" + std::to_string(index) + ",\"work[" + std::to_string(index + 1) + "]\",null,\"" +
         state + "\",0,0,0,0,null,null,null,null,null]";
}

}  // namespace

TEST_CASE("a table gives the rows that changed, and all rows to who has another table") {
  TaskTable table(7);
  table.update(run_of({"ready", "ready", "ready"}));
  CHECK(table.sequence() == 1);
  std::string all =
      "\"rows\":[" + row(0, "ready") + "," + row(1, "ready") + "," + row(2, "ready") + "]}";
  CHECK(rows_in(table.changes(0, 0)) == all);
  CHECK(rows_in(table.changes(6, 1)) == all);
  CHECK(rows_in(table.changes(7, 99)) == all);
  CHECK(rows_in(table.changes(7, 1)) == "\"rows\":[]}");
  table.update(run_of({"ready", "ready", "ready"}));
  CHECK(table.sequence() == 1);
  table.update(run_of({"ready", "running", "ready"}));
  CHECK(table.sequence() == 2);
  CHECK(rows_in(table.changes(7, 1)) == "\"rows\":[" + row(1, "running") + "]}");
  CHECK(table.changes(7, 1).find("\"run\":null") != std::string::npos);
  table.update(run_of({"ready", "running"}));
  CHECK(table.changes(7, 2).find("\"total\":2") != std::string::npos);
  CHECK(rows_in(table.changes(7, 2)) == "\"rows\":[]}");
  RunInfo ended = run_of({"ready", "running"});
  ended.status = "failed";
  table.update(ended);
  CHECK(table.changes(7, 3).find("\"status\":\"failed\"") != std::string::npos);
}

TEST_CASE("a row has the failed attempts and the begin of the error") {
  RunInfo run = run_of({"failed"});
  TaskInfo& task = run.tasks.front();
  task.attempts = 2;
  task.cached = false;
  task.ignored = true;
  task.started_ms = 2000;
  task.finished_ms = 3000;
  task.worker = "a";
  task.usage.queue_s = 0.25;
  task.error = std::string(TaskTable::kErrorBytesMax, 'x') + "y";
  task.failed = {{1, "a", "exit_code"}, {2, "b", "timeout"}};
  TaskTable table(1);
  table.update(run);
  CHECK(rows_in(table.changes(0, 0)) ==
        "\"rows\":[[0,\"work[1]\",null,\"failed\",2,2,2000,3000,\"a\",0.250,null,\"" +
            std::string(TaskTable::kErrorBytesMax, 'x') +
            "\",[[1,\"exit_code\",\"a\"],[2,\"timeout\",\"b\"]]]]}");
}
