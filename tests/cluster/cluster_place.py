"""A folder with a head and workers as processes."""
import datetime
import json
import os
import re
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
import place

HOLDS = place.HOLD + r'''
return flow.pipeline("holds", { gate = flow.param.string {} }, function(p)
  local all = {}
  for i = 1, 4 do all[i] = hold(p.gate, "item" .. i).stdout end
  return all
end)
'''

# Lua: whether a file exists.
IS_THERE = r'''
local function is_there(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end
'''


def train_script(ranks=1):
    """Six steps, each saved by rank 0: if `gate` is not "", step n waits for the file GATEn."""
    return "local flow = require \"flow\"" + IS_THERE + r'''
local train = flow.task("train", { ranks = RANKS }, function(ctx, gate)
  local state = ctx:restore()
  local w = state and state.w or flow.zeros(50, 50)
  for step = state and state.step + 1 or 1, 6 do
    while gate ~= "" and not is_there(gate .. step) do os.execute("sleep 0.05") end
    w = w * 0.5 + ctx.comm:all_reduce(flow.zeros(50, 50) + step * (ctx.rank + 1))
    ctx:checkpoint { step = step, w = w }
    ctx:step("step" .. step, function() return step end)
    ctx:log("step %d is kept", step)
  end
  return w
end)
return flow.pipeline("train", { gate = flow.param.string { default = "" } }, function(p) return train(p.gate) end)
'''.replace("RANKS", str(ranks))


def size_of(path):
    try:
        return os.path.getsize(path)
    except FileNotFoundError:  # it has just been removed
        return 0


class ClusterPlace(place.Place):
    address = "127.0.0.1"  # the address of the head

    def start_on(self, machine, *words):
        """All simulated machines are this one."""
        return self.start(*words)

    def setUp(self):
        super().setUp()
        self.head_process = None
        self.workers = {}
        self.port = place.unused_port()

    def head(self, *words):
        """Starts a head, on the port of the previous one."""
        process = self.start_on("head", "head", "--listen", "%s:%d" % (self.address, self.port), "--json", *words)
        line = process.stdout.readline()
        self.assertTrue(line, "no head: the rest of it is " + ("" if line else self.end(process).err))
        reported = json.loads(line)
        self.port = int(reported["address"].rsplit(":", 1)[1])
        self.secret = reported["secret_file"]
        self.reported = reported
        self.head_process = process
        return process

    def worker(self, name, *words, slots=2, secret=None):
        process = self.start_on(name, "worker", "--join", "%s:%d" % (self.address, self.port), "--secret-file", secret or self.secret,
                             "--name", name, "--dir", self.path("worker-" + name), "--jobs", str(slots), *words)
        self.workers[name] = process
        return process

    def nodes(self):
        done = self.flow("nodes", "--json")
        return {node["node"]: node for node in done.lines()} if done.code == 0 else {}

    def until_status(self, name, status):
        self.until("%s is %s" % (name, status), lambda: self.nodes().get(name, {}).get("status") == status)

    def cluster(self, names, slots=2, head=()):
        """They join one after another: ranks are placed on the first one first."""
        self.head(*head)
        for name in names:
            self.worker(name, slots=slots)
            self.until_status(name, "up")

    def result(self, *words):
        return self.last_json(self.good(*words, "--json"))["result"]

    def trains_alone(self, ranks=1):
        """Writes train.lua and returns its result without any failure."""
        self.write("train.lua", train_script(ranks))
        return self.result("run", "train.lua", "--state", "alone", "--jobs", str(ranks))

    def open_steps(self, first, last):
        self.open(*["go%d" % step for step in range(first, last + 1)])

    def train_until(self, steps, *words):
        """Starts a client that runs train.lua; it stops after this many saved steps."""
        client = self.start("run", "train.lua", "--json", "--param", "gate=" + self.path("go"), *words)
        self.open_steps(1, steps)
        self.until("%d steps" % steps, lambda: self.saved_steps() >= steps)
        return client

    def last_json(self, done):
        return json.loads(done.out.splitlines()[-1])

    def saved_steps(self, state=".flow"):
        folder = self.path(state, "checkpoints")
        names = [name for _, _, files in os.walk(folder) for name in files]
        found = [re.search(r"-(\d+)\.safetensors$", name) for name in names]
        return max([int(match.group(1)) for match in found if match], default=0)

    def run_holds(self, *words, gate="gate"):
        self.write("holds.lua", HOLDS)
        client = self.start("run", "holds.lua", "--json", "--param", "gate=" + self.path(gate), *words)
        for i in range(1, 5):
            self.until_holds("item%d" % i, gate)
        return client

    def lost_at(self, client, worker):
        """For a run that ends: the time in seconds at which its client was first notified that the
        worker was lost."""
        done = self.exits(0, self.end(client))
        reported = [line["at"] for line in done.lines() if line.get("event") == "task" and line["status"] == "waiting"
                and "the worker `%s`, which ran it, was lost" % worker in line["waits_for"]]
        self.assertTrue(reported, done)
        return datetime.datetime.fromisoformat(min(reported)).timestamp()

    def lost_after(self, lose, *head):
        """Seconds from the call `lose(a)` to the report that the worker `a` is lost."""
        self.cluster(["a", "b"], head=head)
        client = self.run_holds()
        began = time.time()
        lose(self.workers["a"])
        self.until_status("a", "lost")
        self.open("gate")
        return self.lost_at(client, "a") - began

    def ends_with_one_attempt_each(self, client):
        done = self.exits(0, self.end(client))
        tasks = self.last_json(done)["tasks"]
        self.assertEqual([task["attempts"] for task in tasks], [1, 1, 1, 1], done)
        self.assertEqual(len(self.read("gate.started").split()), 4)
        ends = [(line["task"], line["at"]) for line in done.lines()
                if line.get("event") == "task" and line["status"] == "succeeded"]
        self.assertEqual(sorted(ends), [(task["name"], task["finished"]) for task in tasks], done)
        return tasks
