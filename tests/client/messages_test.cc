// What a head tells a client of a run is the run, to a field.
#include "engine/client/messages.hpp"

#include <catch2/catch.hpp>

using namespace flow;

TEST_CASE("a run and its tasks come out of a link's values as they went in") {
  RunInfo run;
  run.id = "r-1";
  run.name = "name";
  run.pipeline = "pipeline";
  run.status = "running";
  run.directory = "/d";
  run.script = "laptop:/d/p.lua";
  run.started_ms = 1'000;
  run.finished_ms = 2'000;
  run.counts = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  run.result = Value::map({{"x", 1.5}});
  run.params = Value::map({{"n", int64_t{3}}});
  run.retried = 4;
  TaskInfo task;
  task.name = "train#1";
  task.key = "k";
  task.status = "running";
  task.worker = "w1";
  task.error = "it\nfailed";
  task.attempts = 3;
  task.ranks = 4;
  task.grew_from = 2;
  task.cached = true;
  task.started_ms = 1'100;
  task.finished_ms = 1'900;
  task.gpus = {"GPU-a", "GPU-b"};
  task.waits_for = "room";
  task.fraction = 0.25;
  task.metrics = Value::map({{"loss", 0.5}});
  run.tasks = {task, TaskInfo{}};
  run.tasks[1].name = "plain";

  RunInfo back = info_from_value(info_to_value(run));
  add_tasks(tasks_to_value(run.tasks, 0, 1), back.tasks);
  add_tasks(tasks_to_value(run.tasks, 1, 100), back.tasks);
  CHECK(back.json() == run.json());
  CHECK_THAT(run.json(), Catch::Matchers::Contains("\"grew_from\":2"));
}
