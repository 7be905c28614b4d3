#!/usr/bin/env python3
"""Environments that a remote worker lacks: the attempt fails there with `environment`, and another worker runs the task.

usage: remote.py --flow BIN [TEST...]
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cluster"))
import cluster_place  # noqa: E402
import place  # noqa: E402

# A module system in which the worker `bad` has no modules, by the folder in which its commands run.
INIT = r'''
module() {
  case $PWD in */worker-bad/*) echo "ERROR: Unable to locate '$2'" >&2; return 1;; esac
  export LOADED=$2
}
'''
SCRIPT = r'''
local flow = require "flow"
local t = flow.shell("t", { modules = { "tool/1" }, retries = { infra = INFRA, backoff = "10ms" }, args = { "i" },
  command = [[echo $LOADED {i}]] })
return flow.pipeline("p", {}, function() return { t(1).stdout, t(2).stdout } end)
'''


class Remote(cluster_place.ClusterPlace):
    def setUp(self):
        super().setUp()
        os.makedirs(self.path("system", "init"))
        self.write("system/init/bash", INIT)
        self.env.update(MODULESHOME=self.path("system"), LMOD_PKG="")

    def script(self, infra):
        self.write("p.lua", SCRIPT.replace("INFRA", str(infra)))
        return "p.lua"

    def test_a_task_moves_to_a_worker_that_has_the_module(self):
        self.cluster(["bad", "good"], slots=1)
        run = self.last_json(self.good("run", self.script(5), "--json"))
        self.assertEqual(run["result"], ["tool/1 1\n", "tool/1 2\n"])
        self.assertEqual({task["worker"] for task in run["tasks"]}, {"good"})
        failed = [each for task in run["tasks"] for each in task.get("failed_attempts", [])]
        self.assertEqual({(each["worker"], each["cause"]) for each in failed}, {("bad", "environment")})

    def test_without_another_worker_the_failure_names_module_and_worker(self):
        self.cluster(["bad"], slots=1)
        run = self.last_json(self.exits(1, self.flow("run", self.script(0), "--json")))
        for task in run["tasks"]:
            self.assertIn("`%s` did not begin: the module `tool/1` ended with exit code 1" % task["name"], task["error"])
            self.assertEqual([(each["worker"], each["cause"]) for each in task["failed_attempts"]],
                             [("bad", "environment")])


if __name__ == "__main__":
    place.main()
