#include "engine/page/task_table.hpp"

#include <catch2/catch.hpp>

#include "engine/runs/run_info.hpp"

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

TEST_CASE("a table gives the rows that changed, and all rows to a client of another table") {
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

namespace {

/// A run with this many tasks that run.
core::State followed_run(size_t tasks) {
  auto plan = std::make_shared<Plan>();
  plan->pipeline = "p";
  plan->defs.resize(1);
  plan->defs[0].name = "work";
  plan->nodes.resize(tasks);
  core::State state;
  core::Run& run = state.runs["run-1"];
  run.id = "run-1";
  run.status = core::RunStatus::running;
  run.user = "ada";
  run.units.resize(tasks);
  for (size_t i = 0; i < tasks; i++) {
    plan->nodes[i].name = i == 0 ? "work" : "work#" + std::to_string(i + 1);
    core::Unit& unit = run.units[i];
    unit.node = static_cast<uint32_t>(i);
    unit.status = core::UnitStatus::running;
    unit.phase = core::Phase::running;
    unit.attempts = 1;
    unit.started = 1000;
  }
  run.plan = plan;
  return state;
}

RunInfo head_of(const core::Run& run) {
  RunInfo info;
  info.id = run.id;
  info.status = "running";
  return info;
}

}  // namespace

TEST_CASE("a table of a followed run gives the rows of the tasks that changed") {
  core::State state = followed_run(3);
  core::Run& run = state.runs.at("run-1");
  TaskTable table(3);
  table.update(head_of(run), run, state);
  CHECK(table.sequence() == 1);
  CHECK(table.changes(0, 0).find("\"user\":\"ada\",\"total\":3") != std::string::npos);
  table.update(head_of(run), run, state);
  CHECK(table.sequence() == 1);
  CHECK(rows_in(table.changes(3, 1)) == "\"rows\":[]}");
  run.units[1].status = core::UnitStatus::succeeded;
  run.units[1].phase = core::Phase::done;
  run.units[1].finished = 1500;
  table.update(head_of(run), run, state);
  CHECK(table.sequence() == 2);
  std::string changed = rows_in(table.changes(3, 1));
  CHECK(changed.starts_with("\"rows\":[[1,\"work#2\",null,\"succeeded\",1,0,1000,1500,\"local\""));
  CHECK(changed.find("work#3") == std::string::npos);
  // The rows are those of the same tasks as a list.
  RunInfo listed = head_of(run);
  for (core::UnitId unit : {0U, 1U, 2U}) listed.tasks.push_back(info_of_task(run, unit, &state));
  TaskTable other(4);
  other.update(listed);
  CHECK(rows_in(other.changes(0, 0)) == rows_in(table.changes(0, 0)));
}
