#!/usr/bin/env python3
"""Messages and variables of a cluster: the texts of losses and of waiting tasks, notes of a worker,
the address of a head, folders of a worker in place of the client's, and the folders that a worker
keeps of failed attempts."""
import json
import os
import socket

import cluster_place
from cluster_place import place

KEPT = 16  # folders of failed attempts on a worker
OPEN = 4   # further ones whose end the head had not acknowledged at the last failure

FAILS = r'''
local flow = require "flow"
local fails = flow.shell("fails", { retries = { max = MAX, backoff = "0s" }, cache = false, command = [[ echo {attempt} > left; exit 3 ]] })
return flow.pipeline("p", {}, function() return fails().stdout end)
'''
PRINTS = r'''
local flow = require "flow"
local prints = flow.shell("prints", { cache = false, command = [[ echo "${TMPDIR-none} ${HOME-none}"; cd "${HOME-/}"; mktemp > /dev/null ]] })
return flow.pipeline("p", {}, function() return prints().stdout end)
'''
SLURM = r'''
local flow = require "flow"
local prints = flow.shell("prints", { cache = false, env = { FIXED = "/fixed" }, command = [[
  echo "$SLURM_JOB_ID ${SLURM_OF_CLIENT-none} ${SLURM_OF_NODE-none} $SLURMD_NODENAME $OF_SITE $FIXED" ]] })
return flow.pipeline("p", {}, function() return prints().stdout end)
'''
GANG = r'''
local flow = require "flow"
local sum = flow.task("sum", { ranks = 2, cache = false }, function(ctx)
  return ctx.comm:all_reduce(flow.ones(1) * (ctx.rank + 1)):item()
end)
return flow.pipeline("p", {}, function() return sum() end)
'''
# Each rank prints the interface for Gloo; the second gang sets it itself.
GLOO = r'''
local flow = require "flow"
local command = [[ echo {rank} "${GLOO_SOCKET_IFNAME-none}" >> {path} ]]
local given = flow.shell("given", { ranks = 2, cache = false, args = { "path" }, command = command })
local own = flow.shell("own", { ranks = 2, cache = false, args = { "path" }, env = { GLOO_SOCKET_IFNAME = "of-task" }, command = command })
return flow.pipeline("p", {}, function() given("PATH/given") own("PATH/own") end)
'''


class Report(cluster_place.ClusterPlace):
    def notes_before_it_joins(self, name):
        notes = ""
        for line in self.workers[name].stdout:
            if "joined the head" in line:
                return notes
            notes += line
        self.fail("the worker ended: " + notes)

    def test_a_worker_keeps_the_folders_of_the_newest_failed_attempts(self):
        disk = os.statvfs(self.folder)
        if disk.f_bavail < disk.f_blocks // 8:
            self.skipTest("the disk is nearly full, where a worker keeps fewer")
        self.cluster(["a"], slots=1)
        attempts = KEPT + OPEN + 8
        self.write("p.lua", FAILS.replace("MAX", str(attempts - 1)))
        self.exits(1, self.flow("run", "p.lua"))
        self.assertEqual(self.tasks()["fails"]["attempts"], attempts)
        run = self.path("worker-a", "scratch", self.runs()[0]["run"])
        self.until("the older ones go", lambda: len(os.listdir(run)) <= KEPT + OPEN)
        names = sorted(os.listdir(run), key=lambda name: int(name.rsplit("@", 1)[1]))
        self.assertEqual(names, ["fails.0@%d" % i for i in range(attempts - len(names) + 1, attempts + 1)])
        self.assertGreaterEqual(len(names), KEPT)
        for name in names:
            with open(os.path.join(run, name, "left")) as file:
                self.assertEqual(file.read().strip(), name.rsplit("@", 1)[1])

    def test_folders_that_do_not_exist_on_a_worker_are_replaced_by_its_own(self):
        self.write("p.lua", PRINTS)
        own = self.path("own")
        os.mkdir(own)
        self.head()
        self.env.update(HOME=own)
        self.worker("a")
        self.until_status("a", "up")
        there = {"TMPDIR": self.path("there"), "HOME": self.path("there")}
        os.mkdir(self.path("there"))
        self.assertEqual(self.result_of(there), "%s %s\n" % (there["TMPDIR"], there["HOME"]))
        gone = {"TMPDIR": self.path("no-such"), "HOME": self.path("no-such")}
        self.assertEqual(self.result_of(gone), "%s %s\n" % (self.env["TMPDIR"], own))

    def test_folders_that_neither_machine_has_are_not_set(self):
        self.write("p.lua", PRINTS)
        self.head()
        self.env.update(HOME=self.path("no-such-home"))
        self.worker("a")
        self.until_status("a", "up")
        self.assertEqual(self.result_of({"HOME": self.path("no-such")}), self.env["TMPDIR"] + " none\n")

    def result_of(self, env):
        return self.last_json(self.good("run", "p.lua", "--json", **env))["result"]

    def test_a_task_on_a_slurm_node_has_the_variables_of_its_job(self):
        self.write("p.lua", SLURM)
        self.head()
        of_node = {"SLURM_JOB_ID": "77", "SLURM_OF_NODE": "n1", "SLURMD_NODENAME": "n1", "OF_SITE": "/node"}
        self.env.update(of_node)
        self.worker("a")
        for name in of_node:
            del self.env[name]
        self.until_status("a", "up")
        self.assertEqual(self.result_of({"SLURM_JOB_ID": "5", "SLURM_OF_CLIENT": "c", "SLURMD_NODENAME": "login", "OF_SITE": "/client"}),
                         "77 none n1 n1 /client /fixed\n")

    def test_a_head_at_another_address_names_the_workers_that_know_only_the_former_one(self):
        self.cluster(["a"], slots=4)
        client = self.run_holds()
        former = "127.0.0.1:%d" % self.port
        self.kill(self.head_process)
        self.kill(client)
        self.exits(4, self.flow("resume"), "start `flow head --listen %s` on this state again" % former)
        former_port, self.port = self.port, place.unused_port()
        moved = self.head()
        here = "127.0.0.1:%d" % self.port
        err = self.kill(moved).err
        self.assertIn("still try its address: `a` at %s. This head listens at %s. Restart it with `--listen %s`, or restart the "
                      "workers with `--join %s` and their former `--dir`" % (former, here, former, here), err)
        self.port = former_port
        back = self.head()
        self.until_status("a", "up")
        resumed = self.start("resume", "--json")
        self.assertTrue(resumed.stdout.readline())  # its first event: the run continues
        self.open("gate")
        self.exits(0, self.end(resumed))
        self.assertEqual(len(self.read("gate.started").split()), 4)  # the attempts on the worker were adopted
        self.assertNotIn("still try its address", self.kill(back).err)

    def test_the_loss_of_a_killed_worker_reports_the_end_of_its_process(self):
        self.cluster(["a"])
        self.write("holds.lua", cluster_place.HOLDS)
        client = self.start("run", "holds.lua", "--json", "--param", "gate=" + self.path("gate"))
        self.until_holds("item1")
        self.until_holds("item2")
        self.kill(self.workers["a"])
        self.until_status("a", "lost")
        lost = self.good("why", "last", "hold").out
        self.assertIn("the worker `a`, which ran it, was lost", lost)
        self.assertIn("the process there has ended, or nothing reaches it any more", lost)
        self.assertIn("the worker `a` was lost, and no other has joined", self.good("why", "last", "hold#4").out)
        self.worker("b")
        self.open("gate")
        self.exits(0, self.end(client))

    def test_why_counts_the_tasks_of_other_runs_that_come_first(self):
        self.cluster(["a"], slots=1)
        self.write("holds.lua", cluster_place.HOLDS)
        first = self.start("run", "holds.lua", "--json", "--param", "gate=" + self.path("gate"))
        self.until_holds("item1")
        run = self.runs()[0]["run"]
        self.write("q.lua", place.HOLD + 'return flow.pipeline("q", {}, function() return hold("%s", "q").stdout end)\n'
                   % self.path("gate"))
        second = self.start("run", "q.lua", "--json")
        self.until("q waits", lambda: any(run["pipeline"] == "q" for run in self.runs()))
        self.assertIn("; 3 ready tasks of run %s, which was submitted before, come first" % run, self.good("why", "last", "hold").out)
        self.open("gate")
        self.exits(0, self.end(first))
        self.exits(0, self.end(second))

    def test_a_worker_notes_what_its_machine_lacks(self):
        self.head()
        jobs = 8 * (os.cpu_count() + 1)
        self.worker("a", "--memory", "1000000GiB", slots=jobs)
        notes = self.notes_before_it_joins("a")
        self.assertIn("--jobs %d is far more than the " % jobs, notes)
        self.assertRegex(notes, r"--memory \S+ \w+ is more than the .* that this machine has")
        self.worker("b", "--memory", "1MiB", slots=1)
        self.assertEqual(self.notes_before_it_joins("b"), "")

    def listens(self, at):
        """Starts a head at this address. Returns the host of the address that it prints."""
        process = self.start("head", "--listen", at + ":0", "--json")
        line = process.stdout.readline()
        self.assertTrue(line, "no head: " + ("" if line else self.end(process).err))
        reported = json.loads(line)
        host, self.port = reported["address"].rsplit(":", 1)
        self.start("worker", "--join", "%s:%s" % (at, self.port), "--secret-file", reported["secret_file"], "--name", "a",
                   "--dir", self.path("worker-a"), "--jobs", "1")
        self.until_status("a", "up")
        return host

    def test_a_head_listens_at_a_host_name(self):
        self.assertIn(self.listens("localhost"), ("127.0.0.1", "[::1]"))

    def test_a_head_listens_at_ipv6_loopback(self):
        if not os.path.exists("/proc/sys/net/ipv6/conf/lo"):
            self.skipTest("there is no IPv6 here")
        self.assertEqual(self.listens("[::1]"), "[::1]")
        self.write("p.lua", PRINTS)
        self.assertEqual(self.result_of({"TMPDIR": "/tmp", "HOME": "/"}), "/tmp /\n")

    def test_a_head_listens_at_an_ipv6_address(self):
        self.address = "[::1]"
        try:
            with socket.socket(socket.AF_INET6) as taken:
                taken.bind(("::1", 0))
        except OSError:
            self.skipTest("this machine has no ::1")
        self.cluster(["a", "b"], slots=1)
        self.write("gang.lua", GANG)
        for client in ([], ["--head", "[::1]:%d" % self.port, "--secret-file", self.secret]):
            with self.subTest(client):
                self.good("run", "gang.lua", *client)
                self.assertEqual(self.show()["result"], 3)
                self.assertEqual(set(self.show()["tasks"][0]["worker"].split(", ")), {"a", "b"})

    def test_gloo_gets_the_interface_between_the_workers(self):
        self.cluster(["a", "b"], slots=1)
        self.write("p.lua", GLOO.replace("PATH", self.folder))
        self.good("run", "p.lua")
        self.assertEqual(set(self.show()["tasks"][0]["worker"].split(", ")), {"a", "b"})
        self.assertEqual(sorted(self.read("given").splitlines()), ["0 lo", "1 lo"])
        self.assertEqual(sorted(self.read("own").splitlines()), ["0 of-task", "1 of-task"])


if __name__ == "__main__":
    place.main()
