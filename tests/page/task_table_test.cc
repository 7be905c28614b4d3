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

std::string rows_in(const std::string& json) { return json.substr(json.find("\"rows\":")); }

std::string reasons_in(const std::string& json) {
  size_t at = json.find("\"reasons\":");
  return json.substr(at, json.find(",\"rows\":") - at);
}

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
  for (core::UnitId unit : {0U, 1U, 2U})
    listed.tasks.push_back(info_of_task(run, unit, &state, nullptr));
  TaskTable other(4);
  other.update(listed);
  CHECK(rows_in(other.changes(0, 0)) == rows_in(table.changes(0, 0)));
}

TEST_CASE("ready tasks of one class share a reason: when it changes, no row does") {
  core::State state = followed_run(4);
  state.capacity.cpus_milli = 8000;
  core::Run& run = state.runs.at("run-1");
  run.jobs = 1;
  run.cpus_used_milli = 1000;
  core::SchedulingClass small, large;
  small.cpus_milli = 1000;
  large.cpus_milli = 2000;
  auto wait = [&](core::UnitId unit, const core::SchedulingClass& request) {
    run.ready[request].insert(unit);
    run.units[unit].status = core::UnitStatus::ready;
    run.units[unit].phase = core::Phase::ready;
  };
  wait(2, small);
  wait(3, small);
  TaskTable table(3);
  table.update(head_of(run), run, state);
  CHECK(reasons_in(table.changes(0, 0)) ==
        "\"reasons\":[[0,\"its run has 1 CPU slots, held by `work`, `work#2`\"]]");
  std::string rows = rows_in(table.changes(0, 0));
  CHECK(rows.find("[2,\"work#3\",null,\"ready\",1,0,1000,0,\"local\",null,0,") !=
        std::string::npos);
  CHECK(rows.find("[3,\"work#4\",null,\"ready\",1,0,1000,0,\"local\",null,0,") !=
        std::string::npos);
  run.units[1].status = core::UnitStatus::succeeded;
  run.units[1].phase = core::Phase::done;
  table.update(head_of(run), run, state);
  std::string changed = table.changes(3, 1);
  CHECK(reasons_in(changed) == "\"reasons\":[[0,\"its run has 1 CPU slots, held by `work`\"]]");
  CHECK(rows_in(changed).starts_with("\"rows\":[[1,"));
  CHECK(rows_in(changed).find("work#3") == std::string::npos);
  // Another class has another number. The number of a class that has gone is used again.
  run.ready.clear();
  wait(2, small);
  wait(3, large);
  table.update(head_of(run), run, state);
  CHECK(reasons_in(table.changes(3, 2)).starts_with("\"reasons\":[[1,"));
  CHECK(rows_in(table.changes(3, 2))
            .starts_with("\"rows\":[[3,\"work#4\",null,\"ready\",1,0,1000,0,\"local\",null,1,"));
  run.ready.clear();
  wait(2, large);
  wait(3, large);
  table.update(head_of(run), run, state);
  CHECK(reasons_in(table.changes(3, 3)) == "\"reasons\":[]");
  CHECK(rows_in(table.changes(3, 3))
            .starts_with("\"rows\":[[2,\"work#3\",null,\"ready\",1,0,1000,0,\"local\",null,1,"));
  core::SchedulingClass other;
  other.cpus_milli = 3000;
  run.ready.clear();
  wait(2, large);
  wait(3, other);
  table.update(head_of(run), run, state);
  CHECK(reasons_in(table.changes(3, 4)).starts_with("\"reasons\":[[0,"));
}
