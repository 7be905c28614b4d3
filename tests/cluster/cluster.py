#!/usr/bin/env python3
"""A head and its workers as processes: any of them may fail, and the results are the same."""
import datetime
import json
import os
import re
import signal
import time

import cluster_place
from access import below, links
from cluster_place import place, train_script

SCRIPT = place.HOLD + r'''
local make = flow.task("make", function(ctx, n)
  local file = io.open(ctx.dir .. "/big.bin", "wb")
  file:write(string.rep("x" .. n, 100000))
  file:close()
  return { file = ctx:file("big.bin"), tensor = flow.zeros(n * 500, 100) + n, text = string.rep("t", 70000) }
end)
local use = flow.task("use", function(ctx, made, path)
  local sizes = {}
  for i, name in ipairs { made.file, path } do
    local file = io.open(name, "rb")
    sizes[i] = #file:read("a")
    file:close()
  end
  return { sizes = sizes, sum = made.tensor:sum(), text = #made.text }
end)
local count = flow.shell("count", { args = { "file" }, command = [[wc -c < {file} > {outputs.n}]], outputs = { n = "n.txt" } })
return flow.pipeline("content", { path = flow.param.path {} }, function(p)
  return { use(make(3), p.path), use(make(4), p.path), count(make(5).file).n }
end)
'''


class Cluster(cluster_place.ClusterPlace):
    def test_blobs_are_transferred_to_where_they_are_needed(self):
        self.write("content.lua", SCRIPT)
        with open(self.path("big.in"), "wb") as file:
            file.write(os.urandom(1 << 20) * 66)  # read in place
        alone = self.result("run", "content.lua", "--param", "path=big.in", "--state", "alone")
        self.assertEqual(alone[0]["sizes"], [200000, 66 << 20])
        together = self.result("run", "content.lua", "--param", "path=big.in", "--workers", "2")
        self.assertEqual(together, alone)
        self.cluster(["a", "b"])
        self.assertEqual(self.result("run", "content.lua", "--fresh", "--param", "path=big.in"), alone)
        self.good("get", "last", "-o", "out")

    def test_a_killed_worker_loses_no_training(self):
        alone = self.trains_alone()
        self.cluster(["a", "b"])
        client = self.train_until(3)
        where = [name for name, node in self.nodes().items() if node["tasks"]]
        self.assertEqual(len(where), 1)
        self.kill(self.workers[where[0]])
        self.until_status(where[0], "lost")
        self.open_steps(4, 6)
        done = self.exits(0, self.end(client))
        run = self.last_json(done)
        self.assertEqual(run["result"], alone)
        self.assertEqual(run["tasks"][0]["attempts"], 2)
        other = {"a": "b", "b": "a"}[where[0]]
        self.assertEqual(run["tasks"][0]["worker"], other)

    def test_a_worker_that_is_stopped_hands_over_its_attempts(self):
        alone = self.trains_alone()
        self.cluster(["a", "b"])
        client = self.train_until(3)
        where = [name for name, node in self.nodes().items() if node["tasks"]][0]
        self.workers[where].terminate()
        self.until_status(where, "draining")
        self.open("go4")
        self.exits(0, self.end(self.workers[where]))
        self.until_status(where, "left")
        self.open_steps(5, 6)
        done = self.exits(0, self.end(client))
        run = self.last_json(done)
        self.assertEqual(run["result"], alone)
        self.assertEqual((run["tasks"][0]["attempts"], run["tasks"][0]["worker"]), (2, {"a": "b", "b": "a"}[where]))
        self.assertNotIn("preempted", done.out)
        self.assertNotIn("a new attempt", done.out)

    def test_equal_checkpoints_are_saved_separately(self):
        self.write("alike.lua", r"""
local flow = require "flow"
local a = flow.task("a", { retries = { infra = 0 } }, function(ctx, i)
  for e = 1, 8 do ctx:checkpoint { x = flow.zeros(100) } os.execute("sleep 0.03") end
  return ctx:restore().x:sum() + i
end)
return flow.pipeline("alike", function() local all = {} for i = 1, 6 do all[i] = a(i) end return all end)
""")
        for workers, slots in (("1", "2"), ("2", "4")):
            self.assertEqual(self.result("run", "alike.lua", "--fresh", "--workers", workers, "--jobs", slots), [1, 2, 3, 4, 5, 6])

    def test_an_incomplete_report_of_a_dead_worker_is_ignored(self):
        alone = self.trains_alone()
        self.cluster(["a"])
        client = self.train_until(2)
        self.until("the step is kept", lambda: "step 2 is kept" in self.flow("logs", "last", "train").out)
        self.head_process.send_signal(signal.SIGSTOP)
        self.open("go3")
        self.until("one more, on the worker", lambda: self.saved_steps("worker-a") >= 3)
        time.sleep(0.3)  # until the report is in the spool
        self.kill(self.workers["a"])
        self.worker("a")
        time.sleep(0.5)
        self.head_process.send_signal(signal.SIGCONT)
        self.open_steps(4, 6)
        done = self.exits(0, self.end(client))
        self.assertEqual(self.last_json(done)["result"], alone)

    def test_a_task_without_checkpoints_starts_over_when_its_worker_leaves(self):
        self.cluster(["a"], slots=4)
        client = self.run_holds()
        self.worker("b", slots=4)
        self.until_status("b", "up")
        leaving = self.workers["a"]
        leaving.terminate()
        self.until_status("a", "draining")
        leaving.terminate()
        self.exits(0, self.end(leaving))
        self.until("all run again", lambda: len(self.read("gate.started").split()) == 8)
        self.open("gate")
        run = self.last_json(self.exits(0, self.end(client)))
        self.assertEqual([(task["attempts"], task["worker"]) for task in run["tasks"]], [(2, "b")] * 4)

    def test_a_worker_without_a_head_ends(self):
        self.cluster([])
        worker = self.worker("a", "--head-timeout", "1s")
        self.until_status("a", "up")
        self.kill(self.head_process)
        done = self.exits(0, self.end(worker))
        self.assertIn("--head-timeout", done.out)
        self.exits(2, self.end(self.worker("b", "--head-timeout", "0s")), "--head-timeout is 1.0s or more, not `0s`")

    def telling_head(self, *words):
        """Prints to the file `reported`."""
        self.write("reported", "")
        self.head_process = self.start("head", "--listen", "127.0.0.1:%d" % self.port, *words,
                                       before=("sh", "-c", 'exec "$0" "$@" >reported'))
        self.until_reported("secret.file")
        self.port = int(re.search(r"127.0.0.1:(\d+)", self.read("reported"))[1])
        self.secret = self.path(".flow", "secret")

    def until_reported(self, pattern):
        self.until("it tells " + pattern, lambda: re.search(pattern, self.read("reported")))

    def end_head(self):
        self.head_process.terminate()
        self.exits(0, self.end(self.head_process))

    def test_a_head_reports_workers_that_join_and_leave(self):
        self.telling_head()
        self.worker("a")
        self.until_reported(r"(?m)^20.*  worker `a` is up, from 127.*: 2 CPUs, .*iB$")
        self.workers["a"].terminate()
        self.until_reported(r"(?m)  worker `a` is gone: it has drained$")
        self.worker("b")
        self.until_reported("worker `b` is up")
        self.kill(self.workers["b"])
        self.until_reported("worker `b` is lost")
        self.worker("c")
        self.until_reported("worker `c` is up")
        self.kill(self.workers["c"])
        self.until_reported("worker `c` is lost")
        lines = re.findall(r"(?m)  worker `(\w)` is (up|away|lost|gone|draining)", self.read("reported"))
        news = {name: [what for of, what in lines if of == name] for name, what in lines}
        for name, reported in news.items():  # each status once; intermediate ones may be reported
            self.assertEqual(reported, sorted(set(reported), key=reported.index), lines)
            self.assertEqual((reported[0], reported[-1]), ("up", "gone" if name == "a" else "lost"), lines)
        self.assertEqual(sorted(news), ["a", "b", "c"])

    def test_a_head_does_not_report_earlier_states_and_prints_nothing_with_json(self):
        self.telling_head()
        self.worker("a")
        self.until_reported("worker `a` is up")
        self.kill(self.workers["a"])
        self.until_reported("worker `a` is lost")
        self.end_head()
        self.telling_head()
        self.worker("b")
        self.until_reported("worker `b` is up")
        self.assertNotIn("worker `a`", self.read("reported"))
        self.end_head()
        self.telling_head("--json")
        self.worker("c")
        self.until_status("c", "up")
        time.sleep(2)  # time for four refreshes
        self.assertEqual(set(json.loads(self.read("reported"))), {"address", "secret_file"})

    def test_the_language_model_ends_with_the_same_weights(self):
        example = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "gpt")
        small = [word for pair in ("steps=600", "every=20", "batch=8", "context=32", "width=64", "layers=2",
                                   "letters=20") for word in ("--param", pair)]
        alone = self.result("run", example, *small, "--state", "alone")
        client = self.start("run", example, *small, "--workers", "3", "--json")
        self.until("a checkpoint", lambda: self.saved_steps() >= 1)
        where = [name for name, node in self.nodes().items() if any("train" in task for task in node["tasks"])]
        self.assertEqual(len(where), 1, "it had ended")
        with open(self.path(".flow", "workers", where[0], "lock")) as lock:
            os.kill(int(lock.read().split()[1]), signal.SIGKILL)
        run = self.last_json(self.exits(0, self.end(client)))
        self.assertEqual(run["result"], alone)
        self.assertEqual({task["name"]: task["attempts"] for task in run["tasks"]}["train"], 2)

    def test_a_killed_head_loses_no_attempt_of_its_workers(self):
        self.cluster(["a", "b"])
        client = self.run_holds()
        self.kill(self.head_process)
        time.sleep(1)
        self.head()
        self.until_status("a", "up")
        self.until_status("b", "up")
        self.open("gate")
        self.ends_with_one_attempt_each(client)

    def test_a_head_that_ends_leaves_its_workers_to_the_next(self):
        self.cluster(["a"], slots=4)
        client = self.run_holds()
        self.head_process.terminate()
        self.exits(0, self.end(self.head_process))
        self.head()
        self.open("gate")
        self.ends_with_one_attempt_each(client)

    def test_workers_without_a_head_keep_their_attempts(self):
        self.cluster(["a"], slots=4)
        client = self.run_holds()
        self.kill(self.head_process)
        self.good("gc")
        for verb in ("resume", "last"), ("run", "holds.lua", "--param", "gate=gate"), ("run", "holds.lua", "--param", "gate=gate", "--workers", "1"):
            self.exits(4, self.flow(*verb), "`a`", "`flow head --listen ")
        self.head()
        self.until_status("a", "up")
        self.open("gate")
        self.ends_with_one_attempt_each(client)

    def test_why_explains_attempts_of_disconnected_heads_and_workers(self):
        self.cluster(["a"], slots=4)
        client = self.run_holds()
        self.assertNotIn("heard", self.good("why", "last", "hold").out)
        self.kill(self.head_process)
        self.assertIn("Its worker continues it, and the result is accepted once `flow head` runs over this state again",
                      self.good("why", "last", "hold").out)
        self.workers["a"].send_signal(signal.SIGSTOP)
        self.head()
        self.assertIn("Now disconnected: the worker `a`.", self.good("why", "last", "hold").out)
        self.workers["a"].send_signal(signal.SIGCONT)
        self.until("it is back", lambda: "disconnected" not in self.good("why", "last", "hold").out)
        self.open("gate")
        self.ends_with_one_attempt_each(client)

    def test_a_client_reports_how_a_run_ended_without_it(self):
        self.cluster(["a"], slots=4)
        client = self.run_holds()
        client.send_signal(signal.SIGSTOP)
        self.kill(self.head_process)
        self.open("gate")
        self.head()
        self.until("the run has ended", lambda: self.show()["status"] == "succeeded")
        client.send_signal(signal.SIGCONT)
        self.ends_with_one_attempt_each(client)

    def test_results_without_a_head_survive_the_death_of_their_worker(self):
        self.cluster(["a"], slots=4)
        client = self.run_holds()
        self.kill(self.head_process)
        self.open("gate")
        spool = self.path("worker-a", "spool")

        def has_ends():
            reported = b""
            for name in os.listdir(spool):
                with open(os.path.join(spool, name), "rb") as file:
                    reported += file.read()
            return all(b"item%d\n" % i in reported for i in range(1, 5))
        self.until("all ended", has_ends)
        time.sleep(0.5)
        self.kill(self.workers["a"])
        told_later = datetime.datetime.now(datetime.timezone.utc)
        self.head()
        self.worker("a", slots=4)
        for task in self.ends_with_one_attempt_each(client):
            self.assertLess(datetime.datetime.fromisoformat(task["finished"]), told_later, task)

    def test_a_stopped_worker_is_lost_and_its_late_reports_are_rejected(self):
        self.cluster(["a"], slots=4)
        client = self.run_holds()
        self.workers["a"].send_signal(signal.SIGSTOP)
        self.until_status("a", "lost")
        self.worker("b", slots=4)
        self.until("all run again", lambda: len(self.read("gate.started").split()) == 8)
        self.workers["a"].send_signal(signal.SIGCONT)
        self.until_status("a", "up")
        self.open("gate")
        done = self.exits(0, self.end(client))
        run = self.last_json(done)
        self.assertEqual([(task["attempts"], task["worker"]) for task in run["tasks"]], [(2, "b")] * 4, done)

    def test_a_rejected_worker_gets_the_reason(self):
        self.cluster(["a"])
        self.write("other", "0" * 63 + "1\n")
        os.chmod(self.path("other"), 0o600)
        stranger = self.worker("stranger", secret=self.path("other"))
        namesake = self.start("worker", "--join", "127.0.0.1:%d" % self.port, "--secret-file", self.secret, "--name",
                              "a", "--dir", self.path("namesake"))
        self.assertIn("secret", stranger.stdout.readline())
        self.assertIn("a worker named `a` has already joined", namesake.stdout.readline())
        self.kill(self.workers["a"])  # its next line reports that it was accepted
        self.assertIn("joined", namesake.stdout.readline())
        self.assertEqual(set(self.nodes()), {None, "a"})
        self.exits(4, self.flow("worker", "--join", "127.0.0.1:1", "--secret-file", self.secret, "--dir",
                                self.path("namesake")), "in use", "--dir")
        self.exits(2, self.flow("worker", "--join", "127.0.0.1:1", "--secret-file", self.secret, "--name", "local"), "--name")
        self.exits(4, self.flow("head", "--listen", "127.0.0.1:%d" % self.port, "--state", "second"),
                   str(self.port))

    def test_no_process_listens_beyond_this_machine(self):
        self.write("train.lua", train_script(2))
        self.cluster(["a", "b"], slots=1)
        client = self.train_until(3)
        led = {process.pid for process in (self.head_process, *self.workers.values())}
        inodes = {}
        for pid in set().union(*(below(pid) for pid in led)):
            try:
                inodes.update({link[8:-1]: pid for link in links(pid).values() if link.startswith("socket:[")})
            except FileNotFoundError:  # it has just ended
                pass
        listening, by = [], set()
        for table in ("tcp", "tcp6", "udp", "udp6"):
            with open("/proc/net/" + table) as file:
                for line in file.readlines()[1:]:
                    fields = line.split()
                    is_open = fields[3] == "0A" or table.startswith("udp")
                    if fields[9] in inodes and is_open:
                        listening.append((table, fields[1].split(":")[0]))
                        by.add(inodes[fields[9]])
        self.assertEqual(led - by, set(), "workers listen for each other")
        self.assertEqual(len(by - led), 2, "ranks on two workers listen for each other")
        self.assertEqual({address for _, address in listening}, {"0100007F"}, listening)
        self.open_steps(4, 6)
        self.exits(0, self.end(client))

    def test_a_task_runs_where_its_labels_say(self):
        self.write("where.lua", r"""
local flow = require "flow"
local on = flow.task("on", { where = "disk == ssd and not shared" }, function() return 1 end)
return flow.pipeline("where", function() return on() end)
""")
        self.exits(2, self.flow("run", "where.lua", "--state", "alone"))
        self.head()
        self.worker("a", "--label", "disk=ssd", "--label", "shared=yes")
        self.worker("b", "--label", "disk=hdd")
        for name in "ab":
            self.until_status(name, "up")
        client = self.start("run", "where.lua", "--json")
        self.until("it waits", lambda: "it runs where `disk == ssd and not shared`, and the labels are disk=hdd" in self.flow("why", "last", "on").out)
        self.worker("c", "--label", "disk=ssd")
        run = self.last_json(self.exits(0, self.end(client)))
        self.assertEqual(run["tasks"][0]["worker"], "c")

    def test_custom_resources_are_assigned_up_to_their_amount(self):
        self.write("fpga.lua", r"""
local flow = require "flow"
local on = flow.task("on", { resources = { fpga = 1, licence = 0.5 } }, function(ctx, i)
  os.execute("touch began." .. i .. "; while ! test -e go; do sleep 0.05; done")
  return i
end)
return flow.pipeline("fpga", function()
  local all = {}
  for i = 1, 3 do all[i] = on(i) end
  return all
end)
""")
        refused = self.flow("run", "fpga.lua", "--state", "alone")
        self.exits(2, refused)
        self.assertIn("asks for fpga = 1 and licence = 0.5", refused.err)
        self.assertIn("--resource", refused.err)
        self.head()
        self.worker("none", slots=4)
        self.until_status("none", "up")
        client = self.start("run", "fpga.lua", "--json")
        self.until("it waits", lambda: "it asks for fpga = 1, and there is none" in self.flow("why", "last", "on").out)
        self.worker("two", "--resource", "fpga=2", "--resource", "licence=1.5", slots=4)
        # Two at once, and the third names their users.
        self.until("it is given out", lambda: "0 of 2 are free, the rest is held by `on" in self.flow("why", "last", "on#3").out)
        node = self.nodes()["two"]
        self.assertEqual(node["resources"], {"fpga": 2, "licence": 1.5})
        self.assertEqual(node["resources_used"], {"fpga": 2, "licence": 1})
        self.assertIn("fpga 2/2, licence 1/1.5", self.flow("nodes").out)
        self.write("go", "")
        run = self.last_json(self.exits(0, self.end(client)))
        self.assertEqual({task["worker"] for task in run["tasks"]}, {"two"})

    def test_tasks_wait_for_a_worker(self):
        self.write("train.lua", train_script())
        self.head()
        client = self.start("run", "train.lua", "--json")
        self.until("it waits", lambda: "worker" in self.flow("why", "last", "train").out)
        self.worker("late")
        self.exits(0, self.end(client))


if __name__ == "__main__":
    place.main()
