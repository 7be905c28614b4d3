#!/usr/bin/env python3
"""How attempts are ended early: Ctrl-C, its grace period, a second one, cancel, timeouts. Nothing of them is left.

usage: stopping.py --flow BIN [TEST...]
"""
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

HEAD = 'local flow = require "flow"\n'

# Prints that it runs, then counts checkpoints until `gate` exists.
TRAIN = HEAD + r'''
local function is_there(path)
  local file = io.open(path)
  return file ~= nil and file:close()
end
local train = flow.task("train", function(ctx, gate)
  local state = ctx:restore()
  local epoch = state and state.epoch or 0
  ctx:log("from %d", epoch)
  local out = assert(io.open(gate .. ".started", "a"))
  out:write("train\n")
  out:close()
  while epoch < 3 or not is_there(gate) do
    epoch = epoch + 1
    ctx:checkpoint { epoch = epoch }
  end
  return epoch >= 3
end)
return flow.pipeline("train", { gate = flow.param.string {} }, function(p) return train(p.gate) end)
'''

# The marker is an argument, so that the remaining processes are found in /proc.
STUBBORN = HEAD + r'''
local stubborn = flow.shell("stubborn", { args = { "gate", "marker" }, command = [[
  trap '' TERM INT HUP
  setsid sleep {marker} &
  (sleep {marker} & sleep {marker}) &
  echo stubborn >> {gate}.started
  while true; do sleep 1; done
]] })
return flow.pipeline("stubborn", { gate = flow.param.string {}, marker = flow.param.string {} }, function(p)
  return stubborn(p.gate, p.marker).stdout
end)
'''


def processes_with(argument):
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open("/proc/%s/cmdline" % entry, "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if argument.encode() in words:
            found.append(int(entry))
    return found


class Stopping(Place):
    def gate(self):
        return "gate=" + self.path("gate")

    def marker(self):
        return "%d.%d" % (900000 + os.getpid(), self._testMethodName.__hash__() % 1000)

    def test_an_interrupted_task_ends_at_its_next_checkpoint_and_resumes_from_it(self):
        self.write("train.lua", TRAIN)
        run = self.start("run", "train.lua", "--param", self.gate())
        self.until_holds("train")
        run.send_signal(signal.SIGINT)
        self.exits(3, self.end(run), "flow resume")
        before = self.show()
        self.assertEqual(before["status"], "interrupted")
        self.open("gate")
        self.good("resume")
        after = self.show()
        self.assertEqual((after["status"], after["result"]), ("succeeded", True))
        starts = [line for line in self.good("logs", "last", "train").out.splitlines() if "from " in line]
        self.assertEqual(len(starts), 2, starts)
        self.assertNotIn("from 0", starts[1])

    def test_a_signal_to_the_whole_group_is_handled_by_the_head(self):
        self.write("train.lua", TRAIN)
        for first in ("head", "executors"):
            with self.subTest(first):
                run = self.start("run", "train.lua", "--param", self.gate() + first)
                self.until("it runs", lambda: os.path.exists(self.path("gate") + first + ".started"))
                executors = processes_with(self.state)
                self.assertTrue(executors)
                for pid in [run.pid] + executors if first == "head" else executors + [run.pid]:
                    os.kill(pid, signal.SIGTERM)
                self.exits(3, self.end(run), "flow resume")
                train = self.tasks()["train"]
                self.assertEqual((self.show()["status"], train["status"]), ("interrupted", "pending"), train)

    def test_a_task_that_ignores_every_signal_is_killed_with_its_descendants(self):
        self.write("stubborn.lua", STUBBORN)
        marker = self.marker()
        run = self.start("run", "stubborn.lua", "--grace", "1s", "--param", self.gate(), "--param", "marker=" + marker)
        self.until_holds("stubborn")
        self.until("its children run", lambda: len(processes_with(marker)) >= 3)
        run.send_signal(signal.SIGTERM)
        self.exits(3, self.end(run))
        self.assertEqual(processes_with(marker), [])

    def test_a_second_signal_skips_the_grace_period(self):
        self.write("stubborn.lua", STUBBORN)
        marker = self.marker()
        run = self.start("run", "stubborn.lua", "--grace", "1h", "--param", self.gate(), "--param", "marker=" + marker)
        self.until_holds("stubborn")
        run.send_signal(signal.SIGINT)
        self.assertIn("stopping", run.stderr.readline())
        run.send_signal(signal.SIGINT)
        self.exits(3, self.end(run))
        self.assertEqual(processes_with(marker), [])

    def test_a_task_that_continues_after_its_killed_program_has_no_result(self):
        self.write("calls.lua", HEAD + r'''
local call = flow.task("call", function(ctx, gate, i)
  os.execute("echo call" .. i .. " >> " .. gate .. ".started; sleep 1000")
  return "went on"
end)
return flow.pipeline("calls", { gate = flow.param.string {} }, function(p)
  local list = {}
  for i = 1, 6 do list[i] = call(p.gate, i) end
  return list
end)
''')
        run = self.start("run", "calls.lua", "--jobs", "6", "--grace", "1h", "--param", self.gate())
        for i in range(1, 7):
            self.until_holds("call%d" % i)
        run.send_signal(signal.SIGINT)
        self.assertIn("stopping", run.stderr.readline())
        run.send_signal(signal.SIGINT)
        self.exits(3, self.end(run))
        self.assertEqual({task["status"] for task in self.tasks().values()}, {"pending"})

    def test_a_program_may_end_by_itself_within_its_grace_period(self):
        self.write("gentle.lua", HEAD + r'''
local gentle = flow.shell("gentle", { args = { "gate" },
  command = [[echo gentle >> {gate}.started; while [ ! -e {gate} ]; do sleep 0.05; done; echo ended by itself]] })
return flow.pipeline("gentle", { gate = flow.param.string {} }, function(p) return gentle(p.gate).stdout end)
''')
        run = self.start("run", "gentle.lua", "--grace", "1h", "--param", self.gate())
        self.until_holds("gentle")
        run.send_signal(signal.SIGINT)
        self.assertIn("stopping", run.stderr.readline())
        self.open("gate")
        self.exits(0, self.end(run))
        self.assertEqual(self.show()["result"], "ended by itself\n")

    def test_a_task_above_its_timeout_fails_and_reports_it(self):
        self.write("slow.lua", HEAD + r'''
local spin = flow.task("spin", { timeout = "1s" }, function() while true do end end)
local deaf = flow.task("deaf", { timeout = "1s" }, function()
  while true do pcall(function() while true do end end) end
end)
local sleep = flow.shell("sleep", { timeout = "1s", command = "sleep 1000" })
local quick = flow.task("quick", function() return 1 end)
return flow.pipeline("slow", {}, function() spin() deaf() sleep {} return quick() end)
''')
        self.exits(1, self.flow("run", "slow.lua", "--grace", "100ms"))
        tasks = self.tasks()
        self.assertEqual(tasks["quick"]["status"], "succeeded")
        for name in ("spin", "deaf", "sleep"):
            self.assertEqual((tasks[name]["status"], tasks[name]["attempts"]), ("failed", 1), tasks[name])
            self.assertIn("1s", tasks[name]["error"])
            self.assertIn("time", tasks[name]["error"])

    def test_a_result_after_the_timeout_is_rejected(self):
        self.write("late.lua", HEAD + r'''
local late = flow.task("late", { timeout = "200ms" }, function(ctx)
  while not ctx.stopping do end
  return "late"
end)
local waits = flow.task("waits", { timeout = "200ms" }, function(ctx)
  while not ctx.stopping do end
  return ctx:wait("never")
end)
local program = flow.task("program", { timeout = "200ms" }, function(ctx)
  os.execute("sleep 0.5")
  return "late too"
end)
local in_time = flow.task("in_time", { timeout = "1h" }, function() return "in time" end)
return flow.pipeline("late", {}, function() return { late(), waits(), program(), in_time() } end)
''')
        self.exits(1, self.flow("run", "late.lua", "--grace", "1h"))
        tasks = self.tasks()
        for name in ("late", "waits", "program"):
            self.assertEqual((tasks[name]["status"], tasks[name]["attempts"]), ("failed", 1), tasks[name])
            self.assertRegex(tasks[name]["error"], r"`%s` ran longer than its timeout of 200ms and its result is rejected, because it ended after [\d.]+m?s" % name)
        self.assertEqual(self.show()["result"], [None, None, None, "in time"])

    def test_a_checkpoint_within_the_grace_period_of_a_timeout_is_used(self):
        self.write("saves.lua", HEAD + r'''
local saves = flow.task("saves", { timeout = "1s", retries = { max = 1, backoff = "10ms" } }, function(ctx)
  local state = ctx:restore()
  if state then return state.steps end
  local steps = 0
  while not ctx.stopping do steps = steps + 1 end
  ctx:checkpoint { steps = steps }
  return "went on"
end)
return flow.pipeline("saves", {}, function() return saves() end)
''')
        self.good("run", "saves.lua", "--grace", "1h")
        self.assertEqual(self.tasks()["saves"]["attempts"], 2)
        self.assertGreater(self.show()["result"], 0)
        self.assertRegex(self.good("why", "last", "saves").out, "timeout")

    def test_a_timeout_uses_the_retries_of_the_task(self):
        self.write("slow.lua", HEAD + r'''
local twice = flow.task("twice", { timeout = "1s", retries = { max = 2, backoff = "10ms" } }, function(ctx)
  while ctx.attempt < 3 do end
  return ctx.attempt
end)
return flow.pipeline("slow", {}, function() return twice() end)
''')
        self.good("run", "slow.lua", "--grace", "100ms")
        self.assertEqual(self.tasks()["twice"]["attempts"], 3)
        self.assertEqual(self.show()["result"], 3)

    def test_cancel_ends_running_and_waiting_tasks(self):
        self.write("all.lua", HEAD + r'''
local spin = flow.task("spin", function(ctx, gate)
  local out = assert(io.open(gate .. ".started", "a"))
  out:write("spin\n")
  out:close()
  while true do end
end)
local sleep = flow.shell("sleep", { args = { "gate", "marker" },
  command = "echo sleep >> {gate}.started; sleep {marker}" })
local wait = flow.task("wait", function(ctx) return ctx:wait("never") end)
local later = flow.task("later", function(ctx, x) return x end)
return flow.pipeline("all", { gate = flow.param.string {}, marker = flow.param.string {} }, function(p)
  wait()
  return { later(spin(p.gate)), sleep(p.gate, p.marker) }
end)
''')
        marker = self.marker()
        run = self.start("run", "all.lua", "--jobs", "2", "--grace", "200ms", "--param", self.gate(),
                         "--param", "marker=" + marker)
        self.until_holds("spin")
        self.until_holds("sleep")
        self.until("one waits", lambda: self.tasks()["wait"]["status"] == "waiting")
        self.good("cancel", "last")
        self.exits(1, self.end(run))
        tasks = self.tasks()
        self.assertEqual({task["status"] for task in tasks.values()} - {"skipped"}, {"cancelled"}, tasks)
        self.assertEqual(self.show()["status"], "cancelled")
        self.assertEqual(processes_with(marker), [])


if __name__ == "__main__":
    main()
