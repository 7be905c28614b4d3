#!/usr/bin/env python3
"""Large blobs are transferred directly between workers, tasks run where their inputs are, and a
worker stores no more than its limit."""
import os
import re
import signal
import socket
import threading

import cluster_place
from cluster_place import place, size_of
from damage import flip

MIB = 1 << 20
# `make` and `use` run on the worker in `at`, or on any; each tensor has this many MiB.
SCRIPT = r'''
local flow = require "flow"
local function numbers(n, mib) return flow.zeros(mib * 256, 1024) + n end
local function on(name, where, body) return flow.task(name, { where = where }, body) end
local makes, uses = {}, {}
for _, at in ipairs { "a", "b", "c", "d", "e" } do
  makes[at] = on("make_" .. at, "at == " .. at, function(ctx, n, mib) return numbers(n, mib) end)
  uses[at] = on("use_" .. at, "at == " .. at, function(ctx, t, salt) return t:sum() end)
end
local use = flow.task("use", function(ctx, t, salt) return t:sum() end)
return flow.pipeline("contents", { plan = flow.param.string {}, mib = flow.param.int { default = 4 } }, function(p)
  local all = {}
  -- "a1:bc" is number 1, made at a and used at b and c; "*" is anywhere.
  for made, n, used in p.plan:gmatch("(%a)(%d+):([%a*]*)") do
    local tensor = makes[made](tonumber(n), p.mib)
    if used == "" then all[#all + 1] = tensor end
    for at in used:gmatch(".") do all[#all + 1] = (at == "*" and use or uses[at])(tensor, p.plan) end
  end
  return all
end)
'''

# A parameter's file and a file made at `a`, of 1 MiB of one text each, are read at `b`.
MARKED = r'''
local flow = require "flow"
local make = flow.task("make", { where = "at == a" }, function(ctx, n)
  local file = io.open(ctx.dir .. "/made", "wb")
  file:write(n .. (("made " .. "at one worker;"):rep((1 << 20) // 19)))
  file:close()
  return ctx:file("made")
end)
local use = flow.task("use", { where = "at == b" }, function(ctx, made, given)
  local sizes = {}
  for i, name in ipairs { made, given } do
    local file = io.open(name, "rb")
    sizes[i] = #file:read("a")
    file:close()
  end
  return sizes
end)
return flow.pipeline("marked", { given = flow.param.path {}, n = flow.param.int {} }, function(p)
  return use(make(p.n), p.given)
end)
'''
DAMAGED = r'''
local flow = require "flow"
local make = flow.task("make", function(ctx) return flow.zeros(256, 1024) + 1 end)
local use = flow.task("use", function(ctx, made, n) return made:sum() * 4 + n end)
return flow.pipeline("damaged", { n = flow.param.int {} }, function(p) return use(make(), p.n) end)
'''
MADE, GIVEN = b"made at one worker;", b"given to the head;;"


def files_of(folder):
    return [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names]


def is_coming(objects):
    """Whether part of a blob has arrived."""
    return any("tmp-" in path and size_of(path) > 0 for path in files_of(objects))


class Wire:
    """Which of the given texts pass over loopback while it is open."""

    def __init__(self, texts):
        self.seen, self.over = set(), False
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self.socket.bind(("lo", 0))
        self.socket.settimeout(0.2)
        self.texts = texts
        self.thread = threading.Thread(target=self.look)
        self.thread.start()

    def look(self):
        while True:
            try:
                packet = self.socket.recv(1 << 17)
            except TimeoutError:
                if self.over:
                    return
                continue
            self.seen.update(text for text in self.texts if text in packet)

    def close(self):
        self.over = True
        self.thread.join()
        self.socket.close()
        return self.seen


class BlobsPlace(cluster_place.ClusterPlace):
    def start_workers(self, names, *words, slots=2):
        self.write("contents.lua", SCRIPT)
        self.head()
        for name in names:
            self.worker(name, "--label", "at=" + name, *words, slots=slots)
        for name in names:
            self.until_status(name, "up")

    def run_plan(self, plan, mib=4):
        """Returns the worker of each `use` task."""
        done = self.good("run", "contents.lua", "--json", "--param", "plan=" + plan, "--param", "mib=%d" % mib)
        run = self.last_json(done)
        expected = []
        for n, used in re.findall(r"[a-z](\d+):([a-z*]*)", plan):
            expected += [int(n) * mib * 256 * 1024] * len(used)
        self.assertEqual([value for value in run["result"] if isinstance(value, (int, float))], expected)
        return [task["worker"] for task in run["tasks"] if task["name"].startswith("use")]

    def moved(self, way):
        """Chunks and MiB by worker, without workers that moved none."""
        nodes = {name: node["content"][way] for name, node in self.nodes().items() if name}
        return {name: (each["pieces"], each["bytes"] // MIB) for name, each in nodes.items() if each["pieces"]}

    def until_moved(self, way, moved):
        """A worker reports its transfers with a delay."""
        self.until("%s is %s" % (way, moved), lambda: self.moved(way) == moved)


class Contents(BlobsPlace):
    def test_a_blob_is_transferred_between_workers_without_the_head(self):
        self.start_workers("abc")
        self.run_plan("a1:b a2:b")
        self.until_moved("from_workers", {"b": (2, 8)})
        self.until_moved("to_workers", {"a": (2, 8)})
        self.assertEqual(self.moved("from_head"), {})
        self.assertIn("8.0 MiB (2) from workers", self.flow("nodes").out)
        self.run_plan("a1:b")  # the blob exists now
        self.run_plan("a1:c")
        self.until_moved("from_workers", {"b": (2, 8), "c": (1, 4)})
        self.assertEqual(self.moved("from_head"), {})

    def test_a_blob_that_is_damaged_at_the_head_is_downloaded_elsewhere(self):
        self.write("damaged.lua", DAMAGED)
        self.start_workers("a")
        self.good("run", "damaged.lua", "--param", "n=1")
        self.kill(self.workers["a"])  # no other worker has the blob
        self.until_status("a", "lost")
        self.worker("b")
        self.until_status("b", "up")
        objects = [path for path in files_of(self.path(".flow", "objects")) if size_of(path) >= MIB]
        self.assertEqual(len(objects), 1)
        flip(objects[0], MIB // 2)
        self.exits(1, self.flow("run", "damaged.lua", "--param", "n=2"), "damaged")
        use = self.tasks()["use"]
        self.assertIn("damaged", use["error"])
        self.assertLessEqual(use["attempts"], 2)  # the head may find the damage after the first has failed
        self.good("resume")
        self.assertEqual(self.show()["result"], MIB + 2)

    def seen_on_the_way(self, n):
        """Which of the two texts are readable during their transfer to `b`."""
        with open(self.path("given"), "wb") as file:
            file.write(b"%d" % n + GIVEN * ((1 << 20) // len(GIVEN)))
        try:
            wire = Wire([MADE, GIVEN])
        except PermissionError:
            self.skipTest("this user may not look at what goes over the network (CAP_NET_RAW)")
        try:
            sizes = self.result("run", "marked.lua", "--param", "given=given", "--param", "n=%d" % n)
        finally:
            seen = wire.close()
        self.assertEqual(sizes, [size_of(self.path("given"))] * 2)
        self.until("b has it from a", lambda: self.moved("from_workers").get("b") == (n, n - 1))
        self.until("b has the other from the head", lambda: self.moved("from_head").get("b") == (n, n - 1))
        return seen

    def test_blobs_are_encrypted_if_the_head_requires_it(self):
        self.write("marked.lua", MARKED)
        self.head()
        for name in "ab":
            self.worker(name, "--label", "at=" + name)
            self.until_status(name, "up")
        self.assertEqual(self.seen_on_the_way(1), {MADE, GIVEN})
        self.kill(self.head_process)
        self.head("--encrypt")
        for name in "ab":
            self.until_status(name, "up")
        self.assertEqual(self.seen_on_the_way(2), set())

    def test_workers_that_have_a_blob_pass_it_on(self):
        self.start_workers("abcde")
        self.run_plan("a1:bcde")
        self.until_moved("from_workers", {name: (1, 4) for name in "bcde"})
        self.assertEqual(self.moved("from_head"), {})
        self.assertEqual(sum(pieces for pieces, _ in self.moved("to_workers").values()), 4)

    def test_a_task_runs_where_its_inputs_are(self):
        self.start_workers("ab")
        self.run_plan("b1: a2: b3: a4:")
        self.assertEqual(self.run_plan("b1:* a2:* b3:* a4:*"), ["b", "a", "b", "a"])
        self.assertEqual((self.moved("from_head"), self.moved("from_workers")), ({}, {}))

    def test_dead_or_stalled_workers_do_not_block_others(self):
        self.start_workers("abc")
        self.run_plan("a1: a2:")
        self.workers["a"].send_signal(signal.SIGSTOP)
        self.run_plan("a1:b")
        self.until_moved("from_head", {"b": (1, 4)})
        self.kill(self.workers["a"])
        self.until_status("a", "lost")
        self.run_plan("a2:b")
        self.until_moved("from_head", {"b": (2, 8)})
        self.run_plan("a1:c")
        self.until_moved("from_workers", {"c": (1, 4)})

    def test_a_rejoined_worker_and_a_new_head_know_its_blobs(self):
        self.start_workers("ab")
        self.run_plan("a1: a2:")
        self.kill(self.workers["a"])
        self.until_status("a", "lost")
        self.worker("a", "--label", "at=a")
        self.until_status("a", "up")
        self.run_plan("a1:b")
        self.until_moved("from_workers", {"b": (1, 4)})
        self.kill(self.head_process)
        self.head()
        for name in "ab":
            self.until_status(name, "up")
        self.run_plan("a2:b")
        self.until_moved("from_workers", {"b": (2, 8)})
        self.assertEqual(self.moved("from_head"), {})

    def test_a_worker_evicts_the_least_recently_used_blobs(self):
        self.start_workers("abc", "--content-max", "10MiB")
        def kept(name):
            objects = os.walk(self.path("worker-" + name, "objects"))
            return sum(size_of(os.path.join(folder, each)) for folder, _, names in objects for each in names) // MIB
        for n in range(1, 5):
            self.run_plan("a%d:b" % n)
            self.assertLessEqual(kept("b"), 10)
            self.until("a has let go", lambda: kept("a") <= 10)
        self.assertEqual((kept("a"), kept("b")), (8, 8))
        before = self.moved("from_workers")
        self.run_plan("a4:b ")  # a task of another run; its input was used last, and is still there
        self.assertEqual(self.moved("from_workers"), before)
        # The head knows what a and b have evicted, and sends it itself.
        self.run_plan("a1:c")
        self.until_moved("from_head", {"c": (1, 4)})
        self.run_plan("a4:c")
        self.until("c has two", lambda: self.moved("from_workers").get("c") == (1, 4))


if __name__ == "__main__":
    place.main()
