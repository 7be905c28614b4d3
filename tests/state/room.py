#!/usr/bin/env python3
"""A state that cannot be written: its disk is full, it is read-only, or a newer flow wrote it."""
import json
import os
import subprocess
import sys

import place

# Its texts do not fit on the small disk.
SCRIPT = r'''
local flow = require "flow"
local large = flow.task("large", function(ctx, i) return string.rep(string.format("%09d ", i), 200000) end)
local sum = flow.task("sum", function(ctx, texts)
  local bytes = 0
  for _, text in ipairs(texts) do bytes = bytes + #text end
  return { bytes = bytes }
end)
return flow.pipeline("room", { n = flow.param.int { default = 24 } }, function(p)
  local items = {}
  for i = 1, p.n do items[i] = i end
  return sum(flow.map(large, items))
end)
'''
# Its one command writes to its scratch folder.
LEFT = r'''
local flow = require "flow"
local fill = flow.shell("fill", { args = { "mib", "code" }, cache = false,
  command = [[head -c {mib}M /dev/zero > filled; wc -c < filled; exit {code}]] })
return flow.pipeline("left", { mib = flow.param.int {}, code = flow.param.int { default = 0 } }, function(p)
  return fill(p.mib, p.code).stdout
end)
'''
NO_NAMESPACE = 77


def mount(*words):
    subprocess.run(["mount", *words], check=True)


class Room(place.Place):
    def setUp(self):
        super().setUp()
        self.write("pipeline.lua", SCRIPT)
        os.mkdir(self.state)
        self.mounts = 0

    def clean(self):
        for _ in range(self.mounts):
            subprocess.run(["umount", "-l", self.state], check=True)
        super().clean()

    def disk(self, size):
        mount("-t", "tmpfs", "-o", "mode=0700,size=" + size, "none", self.state)
        self.mounts += 1

    def test_a_full_disk_ends_a_head(self):
        self.disk("24m")
        head = self.start("head", "--listen", "127.0.0.1:0", "--jobs", "2")
        self.until("the head listens", lambda: os.path.exists(os.path.join(self.state, "secret")))
        self.exits(4, self.flow("run", "."), "No space left")
        self.assertEqual(self.end(head).code, 4)
        mount("-o", "remount,size=256m", self.state)
        self.good("resume")

    def test_a_full_disk_stops_the_run_which_continues_when_there_is_space(self):
        self.disk("24m")
        self.exits(4, self.flow("run", "."), self.state, "No space left", "MiB free", "last committed", "flow resume")
        self.assertEqual(self.show()["status"], "interrupted")
        before = {n: t["attempts"] for n, t in self.tasks().items() if t["status"] == "succeeded"}
        self.exits(4, self.flow("resume"), "No space left", "MiB free")
        mount("-o", "remount,size=256m", self.state)
        self.good("resume")
        tasks = self.tasks()
        self.assertEqual(before, {name: tasks[name]["attempts"] for name in before})
        self.good("run", ".", "--state", self.path("other"))
        other = self.show_in("other")
        self.assertEqual(self.show()["result"], other["result"])
        self.assertEqual({n: t["key"] for n, t in tasks.items()}, {t["name"]: t["key"] for t in other["tasks"]})

    def show_in(self, state):
        return json.loads(self.good("show", "--json", "--state", self.path(state)).out)

    def test_an_input_that_does_not_fit_on_a_full_disk_is_retried(self):
        self.write("input.lua", r'''
local flow = require "flow"
local again = { infra = 1, backoff = "1ms" }
local by_lua = flow.task("by_lua", { retries = again }, function(ctx, path) return 1 end)
local by_shell = flow.shell("by_shell", { args = { "path" }, retries = again, command = "cat {path}" })
return flow.pipeline("input", {}, function()
  return { by_lua(flow.file("large")), by_shell(flow.file("large")) }
end)
''')
        self.write("large", "x" * 60000)
        scratch = os.path.join(self.state, "scratch")
        os.mkdir(scratch)
        mount("-t", "tmpfs", "-o", "mode=0700,size=32k", "none", scratch)
        self.addCleanup(subprocess.run, ["umount", "-l", scratch], check=True)
        self.exits(1, self.flow("run", "input.lua"), "No space left")
        tasks = self.tasks()
        self.assertEqual({name: task["attempts"] for name, task in tasks.items()}, {"by_lua": 2, "by_shell": 2})

    def test_a_scratch_folder_that_does_not_fit_on_a_full_disk_is_retried(self):
        self.write("scratch.lua", r'''
local flow = require "flow"
local take = flow.task("take", { retries = { infra = 1, backoff = "1ms" } }, function(ctx) return #ctx.dir end)
return flow.pipeline("scratch", {}, function() return take() end)
''')
        scratch = os.path.join(self.state, "scratch")
        os.mkdir(scratch)
        # The attempt's folder, the executors' folder, and the file of the one executor in it.
        files = 3
        mount("-t", "tmpfs", "-o", f"mode=0700,nr_inodes={files}", "none", scratch)
        self.addCleanup(subprocess.run, ["umount", "-l", scratch], check=True)
        self.exits(1, self.flow("run", "scratch.lua", "--jobs", "1"), "No space left")
        self.assertEqual(self.tasks()["take"]["attempts"], 2)

    def head_and_small_worker(self, size="3m"):
        """Mounts a disk for the worker with space for two tensors of 1.2 MB, or of `size`. Returns
        the worker's options."""
        head = self.start("head", "--listen", "127.0.0.1:0", "--json", "--jobs", "0")
        reported = json.loads(head.stdout.readline())
        folder = self.path("small")
        os.mkdir(folder)
        mount("-t", "tmpfs", "-o", "mode=0700,size=" + size, "none", folder)
        self.addCleanup(subprocess.run, ["umount", "-l", folder], check=True)
        joins = ["worker", "--join", reported["address"], "--secret-file", reported["secret_file"], "--jobs", "2"]
        self.until_joined(self.start(*joins, "--dir", folder, "--name", "small"), 1)
        return joins

    def until_joined(self, worker, count):
        self.until("%d workers are there" % count, lambda: len(self.good("nodes", "--json").lines()) == count + 1)

    def test_a_worker_with_a_full_disk_evicts_blobs_that_the_head_has_too(self):
        self.write("large.lua", r'''
local flow = require "flow"
local again = { infra = 20, backoff = "100ms" }
local make = flow.task("make", { retries = again }, function(ctx, n) return flow.zeros(300, 1000) + n end)
local sum = flow.task("sum", function(ctx, x, n) return x:sum() / n end)
return flow.pipeline("large", {}, function()
  local sums, last = {}, nil
  for n = 1, 6 do
    last = sum(make(n, last), n)
    sums[n] = last
  end
  return sums
end)
''')
        self.head_and_small_worker()
        self.good("run", "large.lua")
        self.assertEqual(self.show()["result"], [300000] * 6)
        attempts = [task["attempts"] for name, task in self.tasks().items() if name.startswith("make")]
        self.assertGreater(max(attempts), 1)

    def test_the_leftovers_of_a_failed_attempt_on_a_worker_are_removed_for_the_next(self):
        self.write("left.lua", LEFT)
        self.head_and_small_worker("24m")
        self.exits(1, self.flow("run", "left.lua", "--param", "mib=40"), "No space left")
        failed = self.runs()[-1]["run"]
        self.assertEqual(self.tasks()["fill"]["status"], "failed")
        self.assertEqual(os.listdir(self.path("small", "scratch", failed)), ["fill.0@1"])  # kept for the user
        self.good("run", "left.lua", "--param", "mib=14")
        self.assertEqual(self.show()["result"], "%d\n" % (14 << 20))
        self.assertEqual(self.tasks()["fill"]["attempts"], 1)
        self.assertFalse(os.path.exists(self.path("small", "scratch", failed)))

    def test_an_attempt_without_space_on_a_worker_removes_the_leftovers_of_earlier_ones(self):
        self.write("left.lua", LEFT)
        self.head_and_small_worker("24m")
        self.exits(1, self.flow("run", "left.lua", "--param", "mib=12", "--param", "code=3"), "exit code 3")
        first = self.runs()[-1]["run"]
        self.exits(1, self.flow("run", "left.lua", "--param", "mib=16"), "No space left")
        second = self.show()["run"]
        self.until("the earlier folder goes", lambda: not os.path.exists(self.path("small", "scratch", first)))
        self.assertEqual(os.listdir(self.path("small", "scratch", second)), ["fill.0@1"])
        self.good("resume")
        self.assertEqual(self.show()["result"], "%d\n" % (16 << 20))

    def test_a_task_that_found_no_space_on_one_worker_moves_to_another(self):
        self.write("larger.lua", r'''
local flow = require "flow"
local again = { infra = 3, backoff = "10ms" }
local make = flow.task("make", { retries = again }, function(ctx, n) return flow.zeros(1000, 1000) + n end)
local sum = flow.task("sum", { retries = again }, function(ctx, x) return x:sum() end)
return flow.pipeline("larger", {}, function()
  local sums = {}
  for n = 1, 8 do sums[n] = sum(make(n)) end
  return sums
end)
''')
        joins = self.head_and_small_worker()
        self.until_joined(self.start(*joins, "--dir", self.path("large"), "--name", "large"), 2)
        self.good("run", "larger.lua")
        tasks = self.tasks()
        self.assertEqual(self.show()["result"], [n * 1000000 for n in range(1, 9)])
        self.assertEqual({task["worker"] for task in tasks.values()}, {"large"})
        self.assertGreater(max(task["attempts"] for task in tasks.values()), 1)

    def test_a_read_only_state_is_read_and_not_written(self):
        self.good("run", ".", "--param", "n=2")
        result = self.show()["result"]
        mount("--bind", self.state, self.state)
        self.mounts += 1
        mount("-o", "remount,bind,ro", self.state)
        for words in (["run", ".", "--param", "n=3"], ["retry", "last", "sum"], ["cancel", "last"],
                      ["signal", "last", "go"], ["gc"]):
            done = self.exits(4, self.flow(*words), self.state, "Read-only file system")
            self.assertEqual(done.out, "", words)
        self.assertEqual(self.show()["result"], result)
        self.assertEqual(len(self.runs()), 1)
        self.assertIn("sum", self.good("why").out)
        for words in (["logs"], ["graph", "last"], ["get", "last", "-o", self.path("out")]):
            self.good(*words)
        self.assertNotEqual(os.listdir(self.path("out")), [])

    def test_a_state_of_a_newer_flow_is_not_changed(self):
        for what in ("format", "journal", "family"):
            with self.subTest(what):
                state = self.path(what)
                self.good("run", ".", "--param", "n=2", "--state", state)
                subprocess.run([place.OPTIONS.newer, state, what], check=True)
                for words in (["run", "."], ["retry", "last"], ["cancel", "last"], ["gc"]):
                    self.exits(4, self.flow(*words, "--state", state), "newer")
                if what == "family":  # a reader passes over it
                    self.good("show", "--state", state)
                    continue
                self.exits(4, self.flow("doctor", "--state", state), state, "newer")
                if what == "format":
                    for words in (["resume"], ["ls"], ["show"], ["logs"], ["why"]):
                        self.exits(4, self.flow(*words, "--state", state), state, "newer")


def own_mounts():
    """Starts itself again in a mount namespace, whose mounts end with the process."""
    if os.environ.get("FLOW_OWN_MOUNTS"):
        return
    words = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    if subprocess.run([*words, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode != 0:
        print("skipped: this user can't mount here")
        sys.exit(NO_NAMESPACE)
    os.environ["FLOW_OWN_MOUNTS"] = "1"
    os.execvp(words[0], [*words, sys.executable, *sys.argv])


if __name__ == "__main__":
    own_mounts()
    place.main()
