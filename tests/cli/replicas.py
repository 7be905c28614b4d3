#!/usr/bin/env python3
"""A service that was ready starts again when its process dies, and each replica is shown by itself.

usage: replicas.py --flow BIN [TEST...]
"""
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

SCRIPT = r'''
local flow = require "flow"
local double = flow.service("double", { port = 0, replicas = 1 }, function(ctx, number)
  ctx:log("number %d", number)
  return { predict = function(inputs) return { y = inputs.x * 2 } end }
end)
local count = flow.task("count", function() return 3 end)
return flow.pipeline("serving", {}, function()
  local api = double(7)
  return { api = api, count = count():after(api) }
end)
'''


def executors_of(run):
    """The processes that run attempts, services among them."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % pid) as file:
                name, fields = file.read().rsplit(")", 1)
        except OSError:
            continue  # it has ended
        if name.endswith("(flow-executor") and int(fields.split()[1]) == run.pid:
            found.append(int(pid))
    return found


class Replicas(Place):
    def serve(self, script, *words):
        self.write("pipeline.lua", script)
        run = self.start("run", ".", "--json", *words)
        self.until("it serves", lambda: any(each["status"] == "serving" for each in self.runs()))
        return run

    def kill_services(self, run):
        for pid in executors_of(run):
            os.kill(pid, signal.SIGKILL)

    def until_restarted(self, names, times):
        def are_restarted():
            tasks = self.tasks()
            return all(tasks[name].get("restarts") == times and "url" in tasks[name] for name in names)
        self.until("all services were restarted", are_restarted)

    def ends(self, run):
        run.send_signal(signal.SIGINT)
        done = self.exits(0, self.end(run))
        self.assertEqual(self.show()["status"], "succeeded")
        return done.lines()  # events, and the run

    def test_a_service_that_dies_starts_again_and_its_run_goes_on(self):
        run = self.serve(SCRIPT)
        self.assertNotIn("restarts", self.tasks()["double"])
        for times in (1, 2):
            self.kill_services(run)
            self.until_restarted(["double"], times)
            self.assertEqual(self.show()["status"], "serving")
        note = "restarted 2 times, last: "
        for out in (self.good("show").out, self.good("why", "last", "double").out):
            self.assertIn(note, out)
            self.assertIn("signal 9", out[out.index(note):].splitlines()[0])
        lines = self.ends(run)
        waits = [line["waits_for"] for line in lines[:-1] if line["event"] == "task" and line["status"] == "waiting"]
        self.assertEqual(len(waits), 2)
        for number, text in enumerate(waits, 2):
            self.assertIn("a new attempt (%d, in " % number, text)

    def test_a_consumer_gets_the_url_of_a_service_that_is_down(self):
        self.write("pipeline.lua", r'''
local flow = require "flow"
local double = flow.service("double", { port = 0 }, function(ctx)
  local starts = flow.fs.exists("FOLDER/again") and "FOLDER/may_start" or "FOLDER/again"
  flow.fs.append("FOLDER/again", "")
  while not flow.fs.exists(starts) do os.execute("sleep 0.05") end
  return { predict = function(inputs) return { y = inputs.x * 2 } end }
end)
local decide = flow.task("decide", { cache = false }, function()
  while not flow.fs.exists("FOLDER/decide") do os.execute("sleep 0.05") end
  return true
end)
local show = flow.task("show", { cache = false }, function(ctx, api) return api.url end)
return flow.pipeline("serving", {}, function()
  local api = double()
  return show(flow.when(decide():after(api), function() return api end))
end)
'''.replace("FOLDER", self.folder))
        run = self.start("run", ".", "--json", "--jobs", "4")
        self.until("it is submitted", lambda: self.flow("show").code == 0)
        self.until("it serves", lambda: "url" in self.tasks().get("double", {}))
        url = self.tasks()["double"]["url"]
        (service,) = self.good("services", "--json").lines()
        os.kill(service["replicas"][0]["pid"], signal.SIGKILL)
        self.until("it is down", lambda: "url" not in self.tasks()["double"])
        self.open("decide")
        self.until("the consumer has its value", lambda: self.tasks()["show"]["status"] == "succeeded")
        self.assertNotIn("url", self.tasks()["double"])
        self.open("may_start")
        self.until("it serves again", lambda: [each["status"] for each in self.runs()] == ["serving"])
        self.assertEqual(self.show()["result"], url)
        self.ends(run)

    def test_each_replica_has_its_own_attempts_and_the_service_has_one_url(self):
        run = self.serve(SCRIPT.replace("replicas = 1", "replicas = 3"))
        names = ["double[%d]" % number for number in range(3)]
        self.assertEqual(sorted(self.tasks()), ["count"] + sorted(names))
        shown = self.show()
        self.assertEqual(shown["counts"]["running"], 3)
        self.assertIn(shown["url"], [task.get("url") for task in shown["tasks"]])
        self.assertEqual([each["url"] for each in self.runs()], [shown["url"]])
        self.assertEqual(self.good("logs", "last", "double").out.count("number 7"), 3)
        self.assertEqual(self.good("logs", "last", "double[1]").out.count("number 7"), 1)
        why = self.good("why", "last", "double").out
        self.assertIn("`double` is a service of 3 replicas at http://127.0.0.1:", why)
        self.assertIn(": 3 running.", why)
        self.exits(2, self.flow("show", "last", "double[3]"), "no task `double[3]`")
        self.kill_services(run)
        self.until_restarted(names, 1)
        self.assertEqual(self.show()["status"], "serving")
        lines = self.ends(run)
        served = [line for line in lines[:-1] if line["event"] == "serving"]
        self.assertEqual({line["task"] for line in served}, {"double"})
        self.assertEqual(len([line for line in lines[:-1] if line["event"] == "task" and line["status"] == "running" and
                              line["task"] in names and line["attempt"] == 1]), 3)
        self.assertIn("url", lines[-1]["result"]["api"])

    def test_a_service_that_is_never_ready_spends_its_retries(self):
        self.write("pipeline.lua", SCRIPT.replace("replicas = 1", "replicas = 2, retries = 1")
                   .replace('ctx:log("number %d", number)', 'error("no weights")'))
        self.exits(1, self.flow("run", "."), "no weights")
        tasks = self.tasks()
        self.assertEqual({tasks[name]["attempts"] for name in ("double[0]", "double[1]")}, {2})
        self.assertNotIn("restarts", tasks["double[0]"])
        self.assertEqual(tasks["count"]["status"], "skipped")

    def test_the_plan_of_a_service_has_one_line(self):
        self.write("pipeline.lua", SCRIPT.replace("replicas = 1", "replicas = 3"))
        out = self.good("plan", ".").out
        self.assertIn("double", out)
        self.assertNotIn("double[", out)
        lines = self.good("plan", ".", "--json").lines()
        self.assertEqual([line["reason"] for line in lines if line["name"] == "double"], ["a service always runs"])
        self.good("graph", ".")

    def test_a_resume_starts_each_replica_again(self):
        run = self.serve(SCRIPT.replace("replicas = 1", "replicas = 2"))
        self.kill(run)
        self.assertIn("`double` is a service of 2 replicas: 2 running.", self.good("why", "last", "double").out)
        again = self.start("resume", "last", "--json")
        self.until("it serves again", lambda: [each["status"] for each in self.runs()] == ["serving"])
        tasks = self.tasks()
        self.assertEqual([tasks["double[%d]" % number]["attempts"] for number in range(2)], [2, 2])
        self.exits(2, self.flow("retry", "last", "double"), "is serving already")
        self.ends(again)
        self.exits(2, self.flow("retry", "last", "double"), "`double` is a service", "start a new run")


if __name__ == "__main__":
    main()
