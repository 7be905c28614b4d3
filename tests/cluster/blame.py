#!/usr/bin/env python3
"""Which machine or task is at fault: retries run elsewhere, a broken machine is excluded, and a task is not quarantined for the fault
of another."""
import os
import subprocess

import cluster_place
from cluster_place import place

# Its tool is missing on the worker `a`.
TOOL = r'''
local flow = require "flow"
local w = flow.shell("w", { retries = { max = MAX, backoff = "0.05s" }, args = { "i" }, cache = false, command = [[
  case "$PWD" in */worker-a/*) echo "libcuda.so.1: cannot open shared object file" >&2; exit 127;; esac
  while [ ! -e GATE ]; do sleep 0.05; done; echo {i} ]] })
return flow.pipeline("p", {}, function() local all = {} for i = 1, COUNT do all[i] = w(i).stdout end return all end)
'''
# `killer` ends the worker that runs it, once the others have begun as often as it.
KILLER = r'''
local flow = require "flow"
local killer = flow.shell("killer", { cache = false, command = [[
  while [ "$(ls GATE.on.* 2>/dev/null | wc -l)" -lt $((3 * {attempt})) ]; do sleep 0.05; done
  kill -9 $(awk '{print $4}' /proc/$PPID/stat); sleep 60 ]] })
local sound = flow.shell("sound", { args = { "i" }, cache = false, command = [[
  touch GATE.on.{attempt}.{i}
  while [ {attempt} -lt 3 ]; do sleep 0.05; done; echo {i} ]] })
return flow.pipeline("p", {}, function() local all = {} for i = 1, 3 do all[i] = sound(i).stdout end return { killer().stdout, all } end)
'''


class Blame(cluster_place.ClusterPlace):
    def script(self, text, **values):
        for name, value in dict(values, GATE=self.path("gate")).items():
            text = text.replace(name, str(value))
        self.write("p.lua", text)

    def test_a_retry_runs_on_another_machine_and_each_attempt_names_its_worker(self):
        self.cluster(["a", "b"])
        self.open("gate")
        self.script(TOOL, MAX=1, COUNT=1)
        self.assertEqual(self.result("run", "p.lua"), ["1\n"])
        task = self.tasks()["w"]
        self.assertEqual((task["attempts"], task["worker"]), (2, "b"))
        self.assertEqual(task["failed_attempts"], [{"attempt": 1, "worker": "a", "cause": "exit_code"}])
        self.assertIn("failed: attempt 1 on `a` (exit_code)", self.good("why", "last", "w").out)

    def test_an_error_names_the_worker(self):
        self.cluster(["a"])
        self.script(TOOL, MAX=1, COUNT=1)
        done = self.exits(1, self.flow("run", "p.lua"))
        self.assertIn("worker: a", done.out + done.err)
        self.assertIn("failed: attempt 1 on `a` (exit_code), 2 on `a` (exit_code)", self.good("why", "last", "w").out)

    def test_a_machine_where_many_tasks_fail_is_excluded(self):
        self.cluster(["a", "b"])
        self.script(TOOL, MAX=3, COUNT=8)
        client = self.start("run", "p.lua", "--json")
        # Two run on `b` and occupy its slots; the others would use up their retries on `a`.
        self.until("a is set aside", lambda: "set aside" in (self.nodes().get("a", {}).get("note") or ""))
        self.assertIn("set aside", self.good("nodes").out)
        self.open("gate")
        done = self.exits(0, self.end(client))
        self.assertEqual(self.last_json(done)["result"], ["%d\n" % i for i in range(1, 9)])

    def test_a_task_is_not_quarantined_for_the_fault_of_another(self):
        self.cluster(["a", "b", "c", "d"], slots=4)
        self.script(KILLER)
        self.exits(1, self.flow("run", "p.lua"))
        tasks = self.tasks()
        self.assertEqual({name: task["status"] for name, task in tasks.items()},
                         {"killer": "failed", "sound": "succeeded", "sound#2": "succeeded", "sound#3": "succeeded"})
        error = tasks["killer"]["error"]
        self.assertIn("3 workers in a row died while they ran it", error)
        self.assertIn("with `sound`", error)
        self.assertIn("alone. The last: the worker `", error)
        self.assertEqual(sorted(node["status"] for name, node in self.nodes().items() if name), ["lost"] * 3 + ["up"])


class Announced(cluster_place.ClusterPlace):
    GANG = r'''
local flow = require "flow"
local g = flow.shell("g", { ranks = 3, cache = false, command = [[ pwd; echo cpus {cpus} ]] })
return flow.pipeline("p", {}, function() return g().stdout end)
'''

    def workers_of(self, done):
        self.exits(0, done)
        return self.last_json(done)["tasks"][0]["worker"]

    def test_a_gang_waits_for_announced_workers(self):
        self.write("p.lua", self.GANG)
        self.head("--expect-workers", "3")
        client = self.start("run", "p.lua", "--json")
        for name in "a", "b":
            self.worker(name, slots=1)
            self.until_status(name, "up")
        why = self.good("why", "last", "g").out
        self.assertIn("1 of the 3 expected workers has not joined", why)
        self.worker("c", slots=1)
        self.assertEqual(self.workers_of(self.end(client)), "a, b, c")

    def test_a_clamped_gang_reports_it(self):
        self.write("p.lua", self.GANG)
        self.cluster(["a"], slots=1)
        done = self.flow("run", "p.lua")
        self.exits(0, done, "each gets 0.333, on `a`", "--expect-workers")


class Version(cluster_place.ClusterPlace):
    def test_a_worker_of_another_version_is_rejected(self):
        self.cluster(["a"])
        version = self.good("--version").out.split()[-1]
        self.assertEqual(self.nodes()["a"]["version"], version)
        with open(place.OPTIONS.flow, "rb") as file:
            program = file.read()
        other = version.replace("0", "7", 1)
        os.mkdir(self.path("other"))
        path = self.path("other", "flow")
        with open(path, "wb") as file:
            file.write(program.replace(version.encode() + b"\0", other.encode() + b"\0"))
        os.chmod(path, 0o755)
        os.symlink(os.path.join(os.path.dirname(place.OPTIONS.flow), "flow-executor"), self.path("other", "flow-executor"))
        self.assertIn(other, self.run_other(path, "--version"))
        self.worker("b")  # the head goes on
        self.until_status("b", "up")
        text = self.run_other(path, "worker", "--join", "127.0.0.1:%d" % self.port, "--secret-file", self.secret, "--name", "c",
                              "--dir", self.path("worker-c"), "--head-timeout", "2s")
        self.assertIn(version, text)
        self.assertIn(other, text)
        self.assertIn("install the same version on both", text)
        self.assertNotIn("c", self.nodes())

    def run_other(self, path, *words):
        done = subprocess.run([path, *words], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=place.WAIT_SECONDS_MAX)
        return done.stdout


if __name__ == "__main__":
    place.main()
