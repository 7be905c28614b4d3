#!/usr/bin/env python3
"""What attempts used, in `flow show --json`: of shell tasks, Lua tasks, instances, retries, killed and cached tasks.

usage: usage.py --flow BIN [TEST...]
"""
import os
import pwd
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

MIB = 1 << 20
FIELDS = ["peak_memory", "cpu_s", "read_bytes", "written_bytes", "queue_s", "stage_s", "commit_s", "gpu_s", "gpu_used_s", "gpu_measured_s", "gpu_energy_j"]
# A program that uses 0.3 s of CPU time, 200 MB of memory and writes 50 MB.
PROGRAM = r'''
import sys, time
memory = bytearray(200 * 1000 * 1000)
memory[::4096] = b"x" * len(memory[::4096])
with open("out.bin", "wb") as out:
    for _ in range(50): out.write(memory[:1000 * 1000])
while time.process_time() < 0.3: pass
'''
SCRIPT = r'''
local flow = require "flow"
local burn = flow.shell("burn", { args = { "program" }, outputs = { out = "out.bin" }, command = [[python3 {program}]] })
local think = flow.task("think", function(ctx, n)
  local text = string.rep("x", 100 * 1000 * 1000)
  local file = io.open(ctx.dir .. "/copy.txt", "w")
  file:write(text)
  file:close()
  local t = os.clock()
  while os.clock() < t + 0.2 do end
  return #text + n
end)
local again = flow.shell("again", { retries = { max = 1, backoff = "1ms" },
  command = [[if [ {attempt} = 1 ]; then python3 -c 'import time
while time.process_time() < 0.5: pass'; exit 3; fi]] })
local quick = flow.task("quick", function(ctx) return 1 end)
return flow.pipeline("uses", {}, function(p)
  return { burn(flow.file("program.py")).out, flow.map(think, { 1, 2 }), again().stdout, quick() }
end)
'''
HANGS = r'''
local flow = require "flow"
local hang = flow.task("hang", { timeout = "2s" }, function(ctx) while true do end end)
local die = flow.shell("die", { command = [[python3 -c 'import time
while time.process_time() < 0.2: pass'; kill -9 $PPID; sleep 100]] })
return flow.pipeline("hangs", {}, function(p) return { hang(), die().stdout } end)
'''

# A task that uses much memory, and then one in the same slot that is killed.
LATER = r'''
local flow = require "flow"
local big = flow.shell("big", { command = [[python3 -c 'x = b"x" * 600_000_000']] })
local hang = flow.task("hang", { timeout = "2500ms" }, function(ctx) while true do end end)
return flow.pipeline("later", {}, function(p)
  local used = big()
  return { used.stdout, hang():after(used) }
end)
'''


# Rank 1 uses as much CPU time as rank 0, and more of all else. It removes its many files after both ranks have ended.
GANG = r'''
local flow = require "flow"
local pair = flow.task("pair", { ranks = 2 }, function(ctx)
  local text = ctx.comm.rank == 1 and string.rep("x", 100 * 1000 * 1000) or ""
  local file = io.open(ctx.dir .. "/copy.txt", "w")
  file:write(text)
  file:close()
  for i = 1, #text > 0 and 3000 or 0 do io.open(ctx.dir .. "/" .. i, "w"):close() end
  local t = os.clock()
  while os.clock() < t + 0.3 do end
  return #text
end)
local programs = flow.shell("programs", { ranks = 2, args = { "program" },
  command = [[if [ $RANK = 1 ]; then python3 {program}; mkdir many; (cd many; seq 3000 | xargs touch); fi]] })
return flow.pipeline("gangs", {}, function(p)
  local one = pair()
  return { one, programs(flow.file("program.py")):after(one).stdout }
end)
'''


class Usage(Place):
    def figures(self, task):
        return {field: task[field] for field in FIELDS}

    def between(self, low, value, high, what):
        self.assertIsNotNone(value, what)
        self.assertGreaterEqual(value, low, what)
        self.assertLessEqual(value, high, what)

    def test_figures_of_tasks_that_ran_were_retried_and_were_cached(self):
        self.write("program.py", PROGRAM)
        self.write("pipeline.lua", SCRIPT)
        self.good("run", ".", "--quiet", "--jobs", "2")
        tasks = self.tasks()
        user = pwd.getpwuid(os.geteuid()).pw_name
        self.assertEqual({task["user"] for task in tasks.values()}, {user})
        burn = tasks["burn"]
        self.between(0.3, burn["cpu_s"], 3, burn)
        self.between(200e6, burn["peak_memory"], 300e6, burn)
        self.between(50e6, burn["written_bytes"], 55e6, burn)
        self.between(0, burn["read_bytes"], 50e6, burn)  # Python's own files
        self.assertEqual(burn["gpu_s"], 0)
        for name in ("think[1]", "think[2]"):
            think = tasks[name]
            self.between(0.2, think["cpu_s"], 3, think)
            self.between(100e6, think["peak_memory"], 700e6, think)
            self.between(100e6, think["written_bytes"], 110e6, think)
            self.between(0, think["read_bytes"], 10e6, think)
        again = tasks["again"]  # of its second attempt
        self.assertEqual(again["attempts"], 2, again)
        if again["duration_s"] > 0.05:  # shorter ones may have none
            self.between(0, again["cpu_s"], 0.4, again)
        quick = tasks["quick"]
        for field in ("peak_memory", "read_bytes", "written_bytes"):
            self.assertIn(quick[field], [None] if quick["duration_s"] < 0.04 else [quick[field]], quick)
        for task in (burn, again, quick, tasks["think[1]"]):
            for field in ("queue_s", "stage_s", "commit_s"):
                self.between(0, task[field], task["duration_s"] + 60, (field, task))

        shown = self.good("show", "last", "burn").out
        self.assertRegex(shown, r"(?m)^burn +succeeded .*peak memory \d+(\.\d+)? MiB, CPU time \d+(\.\d+)?m?s")
        self.assertNotIn("peak memory", self.good("show").out)

        self.good("run", ".", "--quiet")
        for task in self.tasks().values():
            self.assertTrue(task["cached"], task)
            self.assertEqual(self.figures(task), dict.fromkeys(FIELDS), task)
            self.assertEqual(task["user"], user)

    def test_figures_of_a_gang_are_of_all_its_ranks(self):
        self.write("program.py", PROGRAM)
        self.write("pipeline.lua", GANG)
        self.good("run", ".", "--quiet", "--jobs", "2")
        pair, programs = self.tasks()["pair"], self.tasks()["programs"]
        self.between(0.6, pair["cpu_s"], 5, pair)
        self.between(100e6, pair["peak_memory"], 400e6, pair)
        self.between(100e6, pair["written_bytes"], 110e6, pair)
        self.between(0.3, programs["cpu_s"], 5, programs)
        self.between(200e6, programs["peak_memory"], 300e6, programs)
        self.between(50e6, programs["written_bytes"], 60e6, programs)
        for task in (pair, programs):
            for field in ("queue_s", "stage_s", "commit_s"):
                self.between(0, task[field], task["duration_s"] + 60, (field, task))
            self.assertEqual(task["gpu_s"], 0, task)

    def test_a_run_has_used_what_its_tasks_have(self):
        self.write("program.py", PROGRAM)
        self.write("pipeline.lua", SCRIPT)
        self.good("run", ".", "--quiet", "--jobs", "2")
        run = self.show()
        figures = [self.figures(task) for task in run["tasks"]]
        known = {field: [each[field] for each in figures if each[field] is not None] for field in FIELDS}
        self.assertEqual(run["usage"].pop("cpu_tasks"), len(known["cpu_s"]))
        self.assertEqual(set(run["usage"]), set(FIELDS))
        self.assertEqual(run["usage"].pop("peak_memory"), max(known["peak_memory"]))
        for field, total in run["usage"].items():
            self.assertAlmostEqual(total, sum(known[field]), places=4, msg=field)
        self.assertNotIn("usage", self.good("ls", "--json").lines()[0])

    def test_an_attempt_that_is_killed_has_what_is_known_of_it(self):
        self.write("pipeline.lua", HANGS)
        self.exits(1, self.flow("run", ".", "--quiet", "--jobs", "2", "--grace", "0s"))
        hang, die = self.tasks()["hang"], self.tasks()["die"]
        self.assertIn("timeout", hang["error"])
        self.between(0.1, hang["cpu_s"], 30, hang)
        self.assertEqual(die["status"], "failed", die)
        self.assertIsNotNone(die["queue_s"], die)
        self.assertIsNone(die["commit_s"], die)
        self.assertEqual(die["gpu_s"], 0, die)

    def test_a_killed_attempt_has_no_memory_of_earlier_ones_in_its_slot(self):
        self.write("pipeline.lua", LATER)
        self.exits(1, self.flow("run", ".", "--quiet", "--jobs", "1", "--grace", "0s"))
        big, hang = self.tasks()["big"], self.tasks()["hang"]
        self.between(600e6, big["peak_memory"], 2e9, big)
        self.assertIn("timeout", hang["error"])
        if hang["peak_memory"] is not None:  # looked at once per second
            self.between(1e6, hang["peak_memory"], 300e6, hang)

    def test_figures_stay_after_the_state_is_opened_again(self):
        self.write("program.py", PROGRAM)
        self.write("pipeline.lua", SCRIPT)
        self.good("run", ".", "--quiet")
        before = {name: self.figures(task) for name, task in self.tasks().items()}
        self.good("gc")  # opens the state as a writer
        self.assertEqual({name: self.figures(task) for name, task in self.tasks().items()}, before)


if __name__ == "__main__":
    main()
