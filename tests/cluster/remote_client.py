#!/usr/bin/env python3
"""Clients on other machines than their head: scripts, modules and files that only they have, and
failures of either side."""
import os
import pwd
import signal
import subprocess
import time

import cluster_place
import machines
from cluster_place import place

SCRIPT = r'''
local flow = require "flow"
local words = require "lib.words"
local function content(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("a")
  file:close()
  return text
end
local use = flow.task("use", function(ctx, path, folder, beside)
  return { size = #content(path), folder = content(folder .. "/a/x") .. content(folder .. "/y"),
           fixed = content(beside), token = os.getenv("TOKEN"), greeting = words.greeting("you") }
end)
local make = flow.task("make", function(ctx, n)
  local file = io.open(ctx.dir .. "/made.bin", "wb")
  file:write(string.rep("m", n))
  file:close()
  return { file = ctx:file("made.bin"), tensor = flow.zeros(300, 100) + n }
end)
return flow.pipeline("away", { big = flow.param.path {}, folder = flow.param.path { default = "folder" } }, function(p)
  print("built by " .. words.greeting("me"))
  return { used = use(p.big, p.folder, flow.file("fixed.txt")), made = make(100000), small = make(3) }
end)
'''
USES = r'''
local flow = require "flow"
local burn = flow.shell("burn", { args = { "big" }, command = [[python3 -c '
import sys, time
memory = b"x" * (100 * 1000 * 1000)
open("out", "wb").write(open(sys.argv[1], "rb").read())
while time.process_time() < 0.3: pass' {big} ]] })
local fails = flow.shell("fails", { retries = { max = 1, backoff = "0s" }, on_error = "ignore", command = [[python3 -c '
import sys, time
while time.process_time() < 0.1: pass
sys.exit(3)' ]] })
return flow.pipeline("uses", { big = flow.param.path {} }, function(p) return { burn(p.big).stdout, fails() } end)
'''
CHATTY = r'''
local flow = require "flow"
local chat = flow.task("chat", function(ctx, i)
  for step = 1, 40 do ctx:progress(step / 40, { step = step, text = string.rep("p", 1000) }) end
  return i
end)
return flow.pipeline("chatty", {}, function(p) local all = {} for i = 1, 400 do all[i] = chat(i) end return all end)
'''


class RemoteClientPlace(cluster_place.ClusterPlace):
    """The head and its workers run in the folder `there`, a client in its own folder."""

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("there"))
        self.there = {"FLOW_STATE": self.path("there", "state")}
        self.home("here")

    def home(self, name):
        folder = self.path(name)
        os.makedirs(os.path.join(folder, "lib"))
        os.makedirs(os.path.join(folder, "folder", "a"))
        self.write(name + "/away.lua", SCRIPT)
        self.write(name + "/lib/words.lua", 'return { greeting = function(who) return "hello " .. who end }')
        self.write(name + "/fixed.txt", "fixed in " + name)
        self.write(name + "/folder/a/x", "x of " + name)
        self.write(name + "/folder/y", "y of " + name)
        self.write(name + "/holds.lua", cluster_place.HOLDS)
        self.write(name + "/chatty.lua", CHATTY)
        with open(os.path.join(folder, "big.in"), "wb") as file:
            file.write(os.urandom(1 << 20) * 3)

    def start(self, *words, before=(), **env):
        """A path on the head's machine, unless it begins in a client's folder."""
        env = dict(self.there, **env) if words[0] in ("head", "worker", "show", "ls", "nodes", "logs") else env
        return super().start(*words, before=before, **env)

    def client(self, *words, at="here", machine=None, secret=None, **env):
        """Runs `flow VERB …` on the client's machine with the head's address."""
        enter = ["ip", "netns", "exec", self.machines.of(machine)] if machine else []
        process = subprocess.Popen(
            [*enter, place.OPTIONS.flow, *words, "--head", "%s:%d" % (self.address, self.port), "--secret-file",
             secret or self.secret], cwd=self.path(at), env=dict(self.env, **env), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def asks(self, *words, **more):
        return self.end(self.client(*words, **more))

    def holds(self, *words, gate="gate", **more):
        client = self.client("run", "holds.lua", "--json", "--param", "gate=" + self.path(gate), *words, **more)
        for i in range(1, 5):
            self.until_holds("item%d" % i, gate)
        return client

    def status(self):
        return self.show()["status"]


    def until_reported(self, client):
        """Waits until there is no head."""
        line = ""
        while "can't be reached" not in line:
            line = client.stdout.readline()
            self.assertTrue(line, "it has ended" + ("" if line else ": %s" % self.end(client)))

    def hears_all_once(self, client):
        done = self.exits(0, self.end(client))
        self.assertEqual([task["attempts"] for task in done.lines()[-1]["tasks"]], [1, 1, 1, 1])
        ends = [line["task"] for line in done.lines() if line.get("event") == "task" and line["status"] == "succeeded"]
        self.assertEqual(sorted(ends), ["hold", "hold#2", "hold#3", "hold#4"])


class RemoteClient(RemoteClientPlace):
    def test_files_that_only_the_client_has_are_sent_with_the_run(self):
        self.cluster(["a"])
        done = self.exits(0, self.asks("run", "away.lua", "--param", "big=big.in", "--json", "--out", "out", TOKEN="t1"))
        alone = self.end(subprocess.Popen([place.OPTIONS.flow, "run", "away.lua", "--param", "big=big.in", "--json", "--state",
                                           "../alone"], cwd=self.path("here"), env=dict(self.env, TOKEN="t1"),
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        run, same = done.lines()[-1], self.exits(0, alone).lines()[-1]
        self.assertEqual(run["result"], same["result"])
        self.assertEqual([(task["name"], task["key"]) for task in run["tasks"]], [(task["name"], task["key"]) for task in same["tasks"]])
        self.assertEqual({task["worker"] for task in run["tasks"]}, {"a"})
        self.assertEqual(run["result"]["used"], {"size": 3 << 20, "folder": "x of herey of here", "fixed": "fixed in here",
                                                 "token": "t1", "greeting": "hello you"})
        self.assertEqual([line["text"] for line in done.lines() if line.get("event") == "print"], ["built by hello me"])
        # The stored values equal the printed ones in every field.
        shown = self.show()
        self.assertEqual(shown, run)
        with open(self.path("here", "out", "made.bin"), "rb") as file:
            self.assertEqual(file.read(), b"m" * 100000)
        with open(self.path("here", "out", "made.tensor.npy"), "rb") as file:
            self.assertEqual(len(file.read()), 128 + 300 * 100 * 4)
        self.assertEqual(sorted(os.listdir(self.path("here", "out"))),
                         ["made-2.bin", "made.bin", "made.tensor.npy", "result.json", "small.tensor.npy"])
        self.assertFalse(os.path.exists(self.path("here", ".flow")))
        again = self.exits(0, self.asks("run", "away.lua", "--param", "big=big.in", "--json", TOKEN="t1")).lines()[-1]
        self.assertEqual([task["cached"] for task in again["tasks"]], [True] * 3)

    def test_the_head_records_what_attempts_on_a_worker_used(self):
        self.cluster(["a"])
        self.write("here/uses.lua", USES)
        run = self.exits(0, self.asks("run", "uses.lua", "--param", "big=big.in", "--json")).lines()[-1]
        burn, fails = [{task["name"]: task for task in run["tasks"]}[name] for name in ("burn", "fails")]
        self.assertEqual((burn["user"], burn["worker"]), (pwd.getpwuid(os.geteuid()).pw_name, "a"))
        self.assertTrue(0.3 <= burn["cpu_s"] <= 3, burn)
        self.assertTrue(100e6 <= burn["peak_memory"] <= 250e6, burn)
        self.assertTrue(3 << 20 <= burn["written_bytes"] <= 4 << 20, burn)
        self.assertTrue(3 << 20 <= burn["read_bytes"] <= 50e6, burn)
        for task in (burn, fails):
            self.assertNotIn(None, (task["queue_s"], task["stage_s"], task["commit_s"]), task)
        self.assertTrue(0.1 <= fails["cpu_s"] <= 3, fails)  # of its last attempt
        self.assertEqual(self.show()["tasks"], run["tasks"])

    def test_errors_are_reported_where_they_occur(self):
        self.cluster(["a"])
        self.write("here/wrong.lua", "return 1 +")
        self.exits(2, self.asks("run", "wrong.lua"), "wrong.lua:1")
        self.exits(2, self.asks("run", "away.lua", "--param", "big=none.in"), "none.in")
        self.write("here/bad.lua", 'local flow = require "flow"\n'
                   'local bad = flow.task("bad", function(ctx) error("no luck") end)\n'
                   'return flow.pipeline("bad", {}, function(p) return bad() end)\n')
        self.exits(1, self.asks("run", "bad.lua"), "no luck", "--head 127.0.0.1:%d" % self.port)
        self.write("secret", "0" * 63 + "1\n")
        os.chmod(self.path("secret"), 0o600)
        self.exits(4, self.asks("run", "bad.lua", secret=self.path("secret")), "secret")
        self.exits(4, self.asks("run", "bad.lua", secret=self.path("none")), self.path("none"))
        port, self.port = self.port, 1
        self.exits(4, self.asks("run", "bad.lua"), "127.0.0.1:1 can't be reached")
        self.port = port
        self.exits(2, self.flow("run", "here/bad.lua", "--head", "nowhere", "--secret-file", self.secret), "is not an address")
        self.exits(2, self.flow("run", "here/bad.lua", "--head", "h:1"), "--secret-file")
        self.exits(2, self.flow("run", "here/bad.lua", "--secret-file", self.secret), "--head")
        self.exits(2, self.asks("run", "bad.lua", "--state", "x"), "--state")
        self.exits(2, self.asks("run", "bad.lua", "--workers", "2"), "--workers")

    def test_other_verbs_use_the_head_too(self):
        self.cluster(["a"], slots=4)
        self.write("here/wait.lua", 'local flow = require "flow"\n'
                   'local one = flow.task("one", function(ctx) return ctx:wait("go") end)\n'
                   'return flow.pipeline("wait", {}, function(p) return one() end)\n')
        planned = self.exits(0, self.asks("plan", "away.lua", "--param", "big=big.in", "--json")).lines()
        self.assertEqual([(node["name"], node["verdict"]) for node in planned], [("use", "runs"), ("make", "runs"), ("make#2", "runs")])
        self.assertEqual([node["node"] for node in self.exits(0, self.asks("nodes", "--json")).lines()], [None, "a"])
        waiting = self.client("run", "wait.lua", "--name", "w", "--json")
        self.until_waits("one")
        self.exits(0, self.asks("signal", "w", "go", "7"), "sent `go`")
        self.assertEqual(self.exits(0, self.end(waiting)).lines()[-1]["result"], 7)
        self.exits(2, self.asks("signal", "w", "go", "8"), "takes no signals")
        self.assertEqual(self.exits(0, self.asks("retry", "w", "one", "--json")).lines()[-1]["status"], "succeeded")
        self.exits(2, self.asks("cancel", "nobody"), "there is no run `nobody`")
        client = self.holds()
        self.exits(0, self.asks("cancel", "last"), "cancelled")
        self.exits(1, self.end(client))

    def test_new_code_is_the_clients(self):
        self.cluster(["a"])
        self.write("here/code.lua", 'local flow = require "flow"\n'
                   'local bad = flow.task("bad", function(ctx, p) error("old") end)\n'
                   'return flow.pipeline("code", { p = flow.param.path {} }, function(p) return bad(p.p) end)\n')
        self.exits(1, self.asks("run", "code.lua", "--param", "p=fixed.txt"), "old")
        self.exits(1, self.asks("resume", "last"), "old")
        self.write("here/code.lua", self.read("here/code.lua").replace('error("old")', 'return io.open(p):read("a")'))
        self.exits(2, self.flow("resume", "last", "--code", "new", **self.there), "on another machine")
        done = self.exits(0, self.asks("resume", "last", "--code", "new", "--json"))
        self.assertEqual(done.lines()[-1]["result"], "fixed in here")
        self.assertEqual(self.exits(0, self.asks("resume", "last", "--json")).lines()[-1]["status"], "succeeded")

    def test_a_client_waits_for_a_restart_of_a_killed_head(self):
        self.cluster(["a"], slots=4)
        client = self.holds("--log-file", self.path("client.log"))
        self.kill(self.head_process)
        self.until_reported(client)
        time.sleep(1)
        self.head()
        self.until_status("a", "up")
        self.open("gate")
        done = self.exits(0, self.end(client))
        self.assertNotIn("can't be reached", done.out + done.err)
        tasks = done.lines()[-1]["tasks"]
        self.assertEqual([task["attempts"] for task in tasks], [1, 1, 1, 1])
        self.assertEqual(len(self.read("gate.started").split()), 4)
        (run,) = self.runs()
        lines = [line.split(" ", 1)[1] for line in self.read("client.log").splitlines()]
        self.assertEqual(lines, ["%s run=%s detail=\"the head at 127.0.0.1:%d\"" % (text, run["run"], self.port) for text in
                                 ("warning disconnected from the head", "info  reconnected to the head")])

    def test_a_client_may_leave_a_run_whose_head_is_gone(self):
        self.cluster(["a"], slots=4)
        client = self.holds()
        self.kill(self.head_process)
        self.until_reported(client)
        client.send_signal(signal.SIGINT)
        done = self.exits(3, self.end(client))
        self.assertEqual(done.lines()[-1]["status"], "interrupted")
        self.head()
        self.until_status("a", "up")
        again = self.client("resume", "last", "--json")
        # It follows the run, which has not ended yet.
        self.assertIn("event", again.stdout.readline())
        self.open("gate")
        run = self.exits(0, self.end(again)).lines()[-1]
        self.assertEqual([task["attempts"] for task in run["tasks"]], [1, 1, 1, 1])

    def test_ctrl_c_interrupts_the_clients_own_run(self):
        self.cluster(["a"], slots=8)
        other = self.holds(gate="gate2")
        client = self.holds()
        self.assertIn("event", client.stdout.readline())  # from here on Ctrl-C interrupts the run
        client.send_signal(signal.SIGINT)
        self.assertIn("stopping", client.stderr.readline())
        client.send_signal(signal.SIGINT)
        self.exits(3, self.end(client))
        self.assertEqual(self.status(), "interrupted")
        self.assertIsNone(other.poll())
        self.open("gate2")
        self.ends_with(other, 1)

    def test_the_run_of_a_killed_client_is_interrupted_after_its_lease(self):
        self.cluster(["a"], slots=4)
        client = self.client("run", "holds.lua", "--grace", "0s", "--param", "gate=" + self.path("gate"))
        self.until_holds("item4")
        self.kill(client)
        self.assertEqual(self.status(), "running")
        self.until("it is interrupted", lambda: self.status() == "interrupted")

    def test_a_suspended_client_receives_missed_events(self):
        self.cluster(["a"], slots=4)
        client = self.holds()
        client.send_signal(signal.SIGSTOP)
        time.sleep(11)  # the client counts as lost after 10 s
        self.open("gate")
        self.until("the run ends", lambda: self.status() == "succeeded")
        client.send_signal(signal.SIGCONT)
        self.hears_all_once(client)

    def test_a_client_suspended_while_the_head_was_killed_receives_missed_events(self):
        self.cluster(["a"], slots=4)
        client = self.holds()
        client.send_signal(signal.SIGSTOP)
        self.kill(self.head_process)
        self.head()
        self.open("gate")
        self.until("the run ends", lambda: self.status() == "succeeded")
        client.send_signal(signal.SIGCONT)
        self.hears_all_once(client)

    def test_two_clients_at_once(self):
        self.home("elsewhere")
        self.cluster(["a"], slots=4)
        words = ["run", "away.lua", "--param", "big=big.in", "--json"]
        pair = [self.client(*words, TOKEN="one"), self.client(*words, at="elsewhere", TOKEN="two")]
        runs = [self.exits(0, self.end(each)).lines()[-1] for each in pair]
        self.assertEqual([(run["result"]["used"]["fixed"], run["result"]["used"]["token"]) for run in runs],
                         [("fixed in here", "one"), ("fixed in elsewhere", "two")])

    def test_a_client_that_reads_nothing_does_not_block_others(self):
        self.cluster(["a"], slots=4)
        slow = self.client("run", "chatty.lua", "--json")
        self.until("it is there", lambda: len(self.runs()) == 1)
        self.exits(0, self.asks("run", "away.lua", "--param", "big=big.in", TOKEN="t"))
        self.until("the slow one's run ends", lambda: self.runs()[0]["status"] == "succeeded")
        done = self.exits(0, self.end(slow))
        self.assertEqual(done.lines()[-1]["result"], list(range(1, 401)))

    def ends_with(self, client, attempts):
        tasks = self.exits(0, self.end(client)).lines()[-1]["tasks"]
        self.assertEqual([task["attempts"] for task in tasks], [attempts] * 4)


class RemoteClientOverANetwork(RemoteClientPlace):
    def setUp(self):
        super().setUp()
        try:
            self.machines = machines.Machines()
        except (subprocess.CalledProcessError, OSError) as error:
            self.skipTest("network namespaces can't be made here: %s" % error)
        self.addCleanup(self.machines.close)
        self.address = self.machines.address("head")
        self.machines.join("laptop")

    def start_on(self, machine, *words):
        if machine not in self.machines.names:
            self.machines.join(machine)
        apart = machines.APART if words[0] == "worker" else []
        return self.start(*words, before=["ip", "netns", "exec", self.machines.of(machine), *apart])

    def test_files_that_only_the_client_has_are_sent_with_the_run(self):
        self.cluster(["a"])
        done = self.exits(0, self.asks("run", "away.lua", "--param", "big=big.in", "--json", machine="laptop", TOKEN="t1"))
        self.assertEqual(done.lines()[-1]["result"]["used"]["size"], 3 << 20)

    def test_a_short_network_outage_costs_nothing(self):
        self.cluster(["a"], slots=4)
        client = self.holds(machine="laptop")
        self.machines.cut("laptop")
        self.until_reported(client)
        self.assertEqual(self.status(), "running")
        self.machines.heal("laptop")
        self.open("gate")
        self.hears_all_once(client)


if __name__ == "__main__":
    place.main()
