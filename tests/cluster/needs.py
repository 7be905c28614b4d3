"""Requests that no worker can satisfy, or not any more: which tasks wait, and which fail."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cluster_place
import place

# Has the requirements NEEDS; its attempts end once the file `go` exists.
ONE = r'''
local flow = require "flow"
local on = flow.task("on", { NEEDS }, function()
  os.execute("echo began >> began; while ! test -e go; do sleep 0.05; done")
  return 1
end)
return flow.pipeline("one", function() return on() end)
'''


class Needs(cluster_place.ClusterPlace):
    def needs(self, needs):
        self.write("one.lua", ONE.replace("NEEDS", needs))

    def until_why(self, words):
        self.until("why: " + words, lambda: words in self.flow("why", "last", "on").out)

    def test_a_task_waits_for_memory_of_the_only_worker_which_is_lost(self):
        self.needs('memory = "3GiB"')
        self.head()
        self.worker("small", "--memory", "1GiB")
        self.until_status("small", "up")
        self.worker("big", "--memory", "4GiB")
        self.until_status("big", "up")
        client = self.start("run", "one.lua", "--json", "--fresh")
        self.until("it began", lambda: self.nodes()["big"]["tasks"])
        self.kill(self.workers["big"])
        self.until_status("big", "lost")
        self.until_why("it asks for 3072 MiB of memory, and there are 1024")
        self.worker("big", "--memory", "4GiB")
        self.open("go")
        run = self.last_json(self.exits(0, self.end(client)))
        self.assertEqual([(task["worker"], task["attempts"]) for task in run["tasks"]], [("big", 2)])

    def test_a_head_that_runs_tasks_waits_for_workers_too(self):
        self.open("go")
        self.head("--jobs", "1")
        for needs, flags, words in (('where = "disk == ssd"', ("--label", "disk=ssd"), "it runs where `disk == ssd`"),
                                    ("resources = { fpga = 1 }", ("--resource", "fpga=1"), "it asks for fpga = 1"),
                                    ("ranks = 3, resources = { fpga = 1 }", ("--resource", "fpga=3"), "ranks")):
            self.needs(needs)
            client = self.start("run", "one.lua", "--json", "--fresh")
            self.until_why(words)
            self.worker("a", *flags)
            done = self.exits(0, self.end(client), "waits for" if "ranks" in needs else "")
            self.assertEqual(self.last_json(done)["tasks"][0]["worker"], "a", done)
            self.workers["a"].terminate()
            self.exits(0, self.end(self.workers["a"]))

    def test_an_unsatisfiable_call_fails_and_others_continue(self):
        self.write("calls.lua", '''local flow = require "flow"
local small = flow.task("small", function() return 1 end)
local wide = flow.task("wide", { memory = "900TiB" }, function() return 2 end)
local caller = flow.dynamic("caller", function() return { small(), wide() } end)
return flow.pipeline("calls", function() return { caller(), small() } end)
''')
        done = self.exits(1, self.flow("run", "calls.lua", "--json", "--fresh"))
        run = self.last_json(done)
        reported = {task["name"]: (task["status"], task["attempts"]) for task in run["tasks"]}
        self.assertEqual([reported[name][0] for name in reported if name.endswith("small")], ["succeeded"] * 2, done)
        wide = [task for task in run["tasks"] if task["name"].endswith("wide")][0]
        self.assertEqual((wide["status"], wide["attempts"]), ("failed", 0), done)
        self.assertRegex(wide["error"], "asks for 900 TiB of memory, and this machine has .*: ask for less")

    def test_unsatisfiable_requests_fail_when_all_workers_have_joined(self):
        for needs, words in (('where = "disk == ssd"', "disk == ssd"), ("resources = { fpga = 1 }", "asks for fpga = 1"),
                             ("ranks = 2, resources = { fpga = 1 }", "fpga"), ("ranks = 2, gpus = 64", "asks for gpus = 64")):
            self.needs(needs)
            refused = self.exits(2, self.flow("run", "one.lua", "--workers", "2"), "`on`", words)
            self.assertEqual(refused.err.count("error:"), 1, refused)
        self.assertFalse(os.path.exists(self.path("began")))

    def test_a_gang_with_an_unsatisfiable_request_is_clamped_and_reports_it(self):
        self.needs("ranks = 2, cpus = 4")
        self.open("go")
        self.cluster(["a"], slots=2)
        self.exits(0, self.flow("run", "one.lua"), "asks for 2 ranks of cpus = 4, and the workers have fewer CPUs",
                   "unless others join, each rank runs with cpus = 1")


if __name__ == "__main__":
    place.main()
