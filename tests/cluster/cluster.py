#!/usr/bin/env python3
"""A head and its workers as processes: what any of them may lose, and what comes out all the same."""
import json
import os
import re
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
import place

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
# Each step waits for a file of its name below `gate`, once there is none `gate`.free.
TRAIN = r'''
local flow = require "flow"
local function is_there(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end
local train = flow.task("train", function(ctx, gate, steps)
  local state = ctx:restore()
  local w = state and state.w or flow.zeros(50, 50)
  for step = state and state.step + 1 or 1, steps do
    while gate ~= "" and not is_there(gate .. step) do os.execute("sleep 0.05") end
    w = w * 0.5 + step
    ctx:checkpoint { step = step, w = w }
    ctx:step("step" .. step, function() return step end)
  end
  return w
end)
return flow.pipeline("train", { gate = flow.param.string { default = "" } }, function(p) return train(p.gate, 6) end)
'''
HOLDS = place.HOLD + r'''
return flow.pipeline("holds", { gate = flow.param.string {} }, function(p)
  local all = {}
  for i = 1, 4 do all[i] = hold(p.gate, "item" .. i).stdout end
  return all
end)
'''


class Cluster(place.Place):
    def setUp(self):
        super().setUp()
        self.head_process = None
        self.workers = {}
        self.port = 0

    def head(self, *words):
        """Starts a head, on the port of the one before it."""
        process = self.start("head", "--listen", "127.0.0.1:%d" % self.port, "--json", *words)
        line = process.stdout.readline()
        self.assertTrue(line, "no head: the rest of it is " + ("" if line else self.end(process).err))
        told = json.loads(line)
        self.port = int(told["address"].rsplit(":", 1)[1])
        self.secret = told["secret_file"]
        self.head_process = process
        return process

    def worker(self, name, *words, slots=2, secret=None):
        process = self.start("worker", "--join", "127.0.0.1:%d" % self.port, "--secret-file", secret or self.secret,
                             "--name", name, "--dir", self.path("worker-" + name), "--jobs", str(slots), *words)
        self.workers[name] = process
        return process

    def nodes(self):
        done = self.flow("nodes", "--json")
        return {node["node"]: node for node in done.lines()} if done.code == 0 else {}

    def until_status(self, name, status):
        self.until("%s is %s" % (name, status), lambda: self.nodes().get(name, {}).get("status") == status)

    def cluster(self, names, slots=2):
        self.head()
        for name in names:
            self.worker(name, slots=slots)
        for name in names:
            self.until_status(name, "up")

    def run_holds(self, gate="gate"):
        self.write("holds.lua", HOLDS)
        client = self.start("run", "holds.lua", "--json", "--param", "gate=" + self.path(gate))
        for i in range(1, 5):
            self.until_holds("item%d" % i, gate)
        return client

    def ends_with_one_attempt_each(self, client):
        done = self.exits(0, self.end(client))
        tasks = json.loads(done.out.splitlines()[-1])["tasks"]
        self.assertEqual([task["attempts"] for task in tasks], [1, 1, 1, 1], done)
        self.assertEqual(len(self.read("gate.started").split()), 4)

    def result(self, *words):
        return json.loads(self.good(*words, "--json").out.splitlines()[-1])["result"]

    def test_content_goes_where_it_is_needed(self):
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
        self.write("train.lua", TRAIN)
        alone = self.result("run", "train.lua", "--state", "alone")
        self.cluster(["a", "b"])
        client = self.start("run", "train.lua", "--json", "--param", "gate=" + self.path("go"))
        self.open("go1", "go2", "go3")
        self.until("three steps", lambda: self.saved_steps() >= 3)
        where = [name for name, node in self.nodes().items() if node["tasks"]]
        self.assertEqual(len(where), 1)
        self.kill(self.workers[where[0]])
        self.until_status(where[0], "lost")
        self.open("go4", "go5", "go6")
        done = self.exits(0, self.end(client))
        run = json.loads(done.out.splitlines()[-1])
        self.assertEqual(run["result"], alone)
        self.assertEqual(run["tasks"][0]["attempts"], 2)
        other = {"a": "b", "b": "a"}[where[0]]
        self.assertEqual(run["tasks"][0]["worker"], other)

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
        run = json.loads(self.exits(0, self.end(client)).out.splitlines()[-1])
        self.assertEqual(run["result"], alone)
        self.assertEqual({task["name"]: task["attempts"] for task in run["tasks"]}["train"], 2)

    def saved_steps(self):
        folder = self.path(".flow", "checkpoints")
        names = [name for _, _, files in os.walk(folder) for name in files]
        return max([int(re.search(r"-(\d+)\.safetensors$", name).group(1)) for name in names], default=0)

    def test_a_killed_head_loses_nothing_that_its_workers_run(self):
        self.cluster(["a", "b"])
        client = self.run_holds()
        self.kill(self.head_process)
        time.sleep(1)
        self.head()
        self.until_status("a", "up")
        self.until_status("b", "up")
        self.open("gate")
        self.ends_with_one_attempt_each(client)

    def test_a_head_that_is_ended_leaves_its_workers_to_the_next(self):
        self.cluster(["a"], slots=4)
        client = self.run_holds()
        self.head_process.terminate()
        self.exits(0, self.end(self.head_process))
        self.head()
        self.open("gate")
        self.ends_with_one_attempt_each(client)

    def test_what_ends_while_there_is_no_head_is_told_by_a_worker_that_dies_too(self):
        self.cluster(["a"], slots=4)
        client = self.run_holds()
        self.kill(self.head_process)
        self.open("gate")
        spool = self.path("worker-a", "spool")

        def has_ends():
            told = b""
            for name in os.listdir(spool):
                with open(os.path.join(spool, name), "rb") as file:
                    told += file.read()
            return all(b"item%d\n" % i in told for i in range(1, 5))
        self.until("all ended", has_ends)
        time.sleep(0.5)
        self.kill(self.workers["a"])
        self.head()
        self.worker("a", slots=4)
        self.ends_with_one_attempt_each(client)

    def test_a_stopped_worker_is_lost_and_what_it_comes_to_is_fenced(self):
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
        run = json.loads(done.out.splitlines()[-1])
        self.assertEqual([(task["attempts"], task["worker"]) for task in run["tasks"]], [(2, "b")] * 4, done)

    def test_who_may_not_join_is_told_why(self):
        self.cluster(["a"])
        self.write("other", "0" * 63 + "1\n")
        os.chmod(self.path("other"), 0o600)
        stranger = self.worker("stranger", secret=self.path("other"))
        namesake = self.start("worker", "--join", "127.0.0.1:%d" % self.port, "--secret-file", self.secret, "--name",
                              "a", "--dir", self.path("namesake"))
        self.assertIn("secret", stranger.stdout.readline())
        self.assertIn("joined", namesake.stdout.readline())
        self.assertIn("--name", namesake.stdout.readline())
        self.assertEqual(set(self.nodes()), {None, "a"})
        self.exits(4, self.flow("worker", "--join", "127.0.0.1:1", "--secret-file", self.secret, "--dir",
                                self.path("worker-a")), "in use", "--dir")
        self.exits(4, self.flow("head", "--listen", "127.0.0.1:%d" % self.port, "--state", "second"),
                   str(self.port))

    def test_nothing_listens_beyond_this_machine(self):
        self.cluster(["a"])
        inodes = set()
        for process in (self.head_process, self.workers["a"]):
            folder = "/proc/%d/fd" % process.pid
            for name in os.listdir(folder):
                found = re.match(r"socket:\[(\d+)\]", os.readlink(os.path.join(folder, name)))
                if found:
                    inodes.add(found.group(1))
        listening = []
        for table in ("tcp", "tcp6", "udp", "udp6"):
            with open("/proc/net/" + table) as file:
                for line in file.readlines()[1:]:
                    fields = line.split()
                    is_open = fields[3] == "0A" or table.startswith("udp")
                    if fields[9] in inodes and is_open:
                        listening.append((table, fields[1].split(":")[0]))
        self.assertTrue(listening)
        self.assertEqual({address for _, address in listening}, {"0100007F"}, listening)

    def test_tasks_wait_for_a_worker(self):
        self.write("train.lua", TRAIN)
        self.head()
        client = self.start("run", "train.lua", "--json")
        self.until("it waits", lambda: "worker" in self.flow("why", "last", "train").out)
        self.worker("late")
        self.exits(0, self.end(client))


if __name__ == "__main__":
    place.main()
