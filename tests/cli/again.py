#!/usr/bin/env python3
"""What `resume` and `retry` run again, what they keep, and what they print first.

usage: again.py --flow BIN [TEST...]
"""
import os
import re
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import HOLD, Place, main  # noqa: E402

# Fails at `breaks`; `keep` and `apart` run to their end in any case.
CHAIN = r'''
local flow = require "flow"
local keep = flow.task("keep", function(ctx, n) return n * 2 end)
local apart = flow.shell("apart", { command = [[echo once >> "$COUNT"]], env = { COUNT = flow.env("COUNT") } })
local breaks = flow.task("breaks", function(ctx, n) %s end)
local after = flow.task("after", function(ctx, n) return n + 1 end)
return flow.pipeline("chain", { n = flow.param.int { default = 4 } }, function(p)
  apart {}
  return after(breaks(keep(p.n)))
end)
'''

FILES = r'''
local flow = require "flow"
local first = flow.shell("first", { args = { "path" }, env = { COUNT = flow.env("COUNT") },
  command = [[cat {path}; echo first >> "$COUNT"]] })
local look = flow.shell("look", { args = { "path" }, command = "cat {path}" })
local join = flow.task("join", function(ctx, a, b) return a .. b end)
return flow.pipeline("files", { there = flow.param.path {}, later = flow.param.string {} }, function(p)
  return join(first(p.there).stdout, look(p.later).stdout)
end)
'''

# `source` returns a different value in each attempt, unless the file `same` exists.
SOURCE = r'''
local flow = require "flow"
local source = flow.task("source", function(ctx, folder)
  local log = assert(io.open(folder .. "/source.log", "a"))
  log:write("source\n")
  log:close()
  local same = io.open(folder .. "/same")
  if same then
    same:close()
    return 1
  end
  return ctx.attempt
end)
local double = flow.task("double", function(ctx, n) return n * 2 end)
local apart = flow.task("apart", function(ctx) return "apart" end)
return flow.pipeline("source", { folder = flow.param.string {} }, function(p)
  return { double(source(p.folder)), apart() }
end)
'''

LARGE = HOLD + r'''
local early = flow.shell("early", { args = { "file" }, command = "wc -c < {file}" })
local late = flow.shell("late", { args = { "file", "held" }, command = "wc -c < {file}; true {held}" })
return flow.pipeline("large", { gate = flow.param.string {}, file = flow.param.path {} }, function(p)
  local size = early(p.file).stdout
  return { size, late(p.file, hold(p.gate, size).stdout).stdout }
end)
'''

WAIT = r'''
local flow = require "flow"
local ask = flow.task("ask", function(ctx) return { ctx:wait("go"), %s } end)
return flow.pipeline("ask", {}, function() return ask() end)
'''


def catches(pid, number):
    with open("/proc/%d/status" % pid) as file:
        caught = next(line for line in file if line.startswith("SigCgt:"))
    return int(caught.split()[1], 16) >> (number - 1) & 1 == 1


class Again(Place):
    def setUp(self):
        super().setUp()
        self.env["COUNT"] = self.path("count")

    def clean(self):
        self.open("gate")
        super().clean()

    def chain(self, body):
        self.write("chain.lua", CHAIN % body)

    def attempts(self):
        return {name: task["attempts"] for name, task in self.tasks().items()}

    def test_a_resume_with_other_code_lists_what_will_run_again_first(self):
        self.chain("error('no luck')")
        self.exits(1, self.flow("run", "chain.lua"))
        self.chain("return n + 1")
        lines = self.good("resume", "--code", "new", "--json").lines()
        self.assertEqual(lines[-1]["result"], 10)
        foreseen = {line["task"]: (line["status"], line.get("reason")) for line in lines
                    if line.get("event") == "plan"}
        self.assertEqual({name: status for name, (status, _) in foreseen.items()},
                         {"keep": "cached", "apart": "cached", "breaks": "runs", "after": "unknown"})
        self.assertEqual(foreseen["breaks"][1], "its function changed")
        self.assertEqual(foreseen["after"][1], "waits for `breaks`")
        order = [line["event"] for line in lines if "event" in line]
        self.assertLess(max(i for i, event in enumerate(order) if event == "plan"), order.index("task"))
        self.assertEqual({name: (task["attempts"], task["cached"]) for name, task in self.tasks().items()},
                         {"keep": (0, True), "apart": (0, True), "breaks": (1, False), "after": (1, False)})
        self.assertEqual(self.read("count"), "once\n")  # also a task that runs for its effect

    def test_the_text_output_lists_what_other_code_will_run_again(self):
        self.chain("error('no luck')")
        self.exits(1, self.flow("run", "chain.lua"))
        self.chain("return n + 1")
        out = self.good("resume", "--code", "new").out.splitlines()
        reported = [line for line in out if ": will run" in line or ": may run" in line]
        self.assertEqual(reported, ["breaks: will run: its function changed", "after: may run: waits for `breaks`"])
        self.assertLess(out.index(reported[1]), out.index("breaks: started"))

    def test_the_comparison_uses_the_run_itself(self):
        self.chain("error('no luck')")
        self.exits(1, self.flow("run", "chain.lua", "--name", "first"))
        self.chain("return n + 2")
        self.good("run", "chain.lua")
        self.chain("error('no luck')")
        out = self.exits(1, self.flow("resume", "first", "--code", "new")).out.splitlines()
        self.assertIn("breaks: will run: it failed", out)

    def test_other_code_is_rejected_for_an_active_run_without_harm(self):
        self.write("held.lua", HOLD + 'return flow.pipeline("held", { gate = flow.param.string {} }, '
                   'function(p) return hold(p.gate, "one").stdout end)\n')
        run = self.start("run", "held.lua", "--param", "gate=" + self.path("gate"))
        self.until_holds("one")
        self.exits(2, self.flow("resume", "--code", "new"), "running already")
        self.open("gate")
        self.exits(0, self.end(run), "succeeded")
        self.assertEqual(self.show()["result"], "one\n")

    def test_a_fail_fast_run_also_ends_at_its_first_failure_with_other_code(self):
        for time in ("first", "second", "third"):
            self.write("both.lua", r'''
local flow = require "flow"
local fails = flow.task("fails", function() error("the %s time") end)
local slow = flow.shell("slow", { command = "sleep 0.5; echo %s" })
local late = flow.shell("late", { args = { "word" }, command = [[echo {word} >> "$COUNT"]], env = { COUNT = flow.env "COUNT" } })
return flow.pipeline("both", {}, function() fails() late(slow().stdout) end)
''' % (time, time))
            again = ("resume", "--code", "new")
            first = ("run", "both.lua", "--fail-fast")
            self.exits(1, self.flow(*(first if time == "first" else again)), "the %s time" % time)
            self.assertFalse(os.path.exists(self.env["COUNT"]))

    def wait_for_ask(self):
        self.write("ask.lua", WAIT % "1")
        run = self.start("run", "ask.lua")
        self.until_waits("ask")
        return run

    def test_a_cancelled_run_stays_cancelled_with_other_code(self):
        run = self.wait_for_ask()
        self.good("cancel", "last")
        self.exits(1, self.end(run))
        for again in ("resume", "--code", "new"), ("resume",), ("retry", "last"), ("retry", "last", "ask"):
            self.exits(2, self.flow(*again), "cancelled")
        self.assertEqual(self.show()["status"], "cancelled")

    def test_received_signals_stay_received_with_other_code(self):
        self.kill(self.wait_for_ask())
        self.good("signal", "last", "go", '"now"')
        self.write("ask.lua", WAIT % "2")
        self.good("resume", "--code", "new")
        self.assertEqual(self.show()["result"], ["now", 2])

    def test_logs_with_other_code_belong_to_its_attempts(self):
        self.chain("ctx:log('old words') ctx:log('more') error('no luck')")
        self.exits(1, self.flow("run", "chain.lua"))
        self.assertIn("old words", self.good("logs").out)
        self.chain("ctx:log('new words') return n")
        self.good("resume", "--code", "new")
        self.assertEqual(self.good("logs", "last", "breaks").out, "new words\n")

    def test_scratch_with_other_code_is_empty(self):
        body = "local file = io.open(ctx.dir .. '/old') local out = io.open(ctx.dir .. '/old', 'w') out:close() "
        self.chain(body + "error(file and 'there' or 'not there')")
        self.exits(1, self.flow("run", "chain.lua"), "not there")
        self.chain(body + "error(file and 'was there' or 'was not there')")
        self.exits(1, self.flow("resume", "--code", "new"), "was not there")

    def test_a_failed_run_resumes_after_its_cause_is_fixed(self):
        self.write("files.lua", FILES)
        self.write("there.txt", "there ")
        self.exits(1, self.flow("run", "files.lua", "--param", "there=there.txt", "--param",
                                "later=" + self.path("later.txt")), "exit code 1")
        self.exits(1, self.flow("resume"), "exit code 1")
        self.write("later.txt", "later")
        self.good("resume")
        self.assertEqual(self.show()["result"], "there later")
        self.assertEqual(self.attempts(), {"first": 1, "look": 3, "join": 1})
        self.assertEqual(self.read("count"), "first\n")

    def test_a_quiet_resume_of_a_succeeded_run_prints_nothing(self):
        self.write("one.lua", 'local flow = require "flow"\n'
                   'local one = flow.task("one", function() return 1 end)\n'
                   'return flow.pipeline("one", {}, function() return one() end)\n')
        self.good("run", "one.lua")
        self.assertEqual(self.good("resume", "-q").out, "")
        self.assertIn("succeeded", self.good("resume").out)
        self.assertEqual([line["result"] for line in self.good("resume", "-q", "--json").lines()], [1])

    def test_an_interruption_does_not_count_as_a_retry(self):
        self.write("held.lua", HOLD + 'return flow.pipeline("held", { gate = flow.param.string {} }, '
                   'function(p) return hold(p.gate, "one").stdout end)\n')
        run = self.start("run", "held.lua", "--param", "gate=" + self.path("gate"))
        self.until_holds("one")
        self.kill(run)
        self.open("gate")
        self.assertIn(" 0 retried,", self.good("resume").out.splitlines()[-1])
        self.assertEqual(self.attempts(), {"hold": 2})

    def test_a_wait_does_not_count_as_a_retry(self):
        run = self.wait_for_ask()
        self.good("signal", "last", "go")
        self.assertIn(" 0 retried,", self.exits(0, self.end(run)).out.splitlines()[-1])
        self.assertEqual(self.attempts(), {"ask": 2})

    def test_attempts_after_failed_ones_are_retries(self):
        self.write("retry.lua", r"""
local flow = require "flow"
local often = { max = 2, backoff = "1ms" }
local thrice = flow.task("thrice", { retries = often }, function(ctx) if ctx.attempt < 3 then error("no") end return 3 end)
local never = flow.task("never", { retries = { max = 1, backoff = "1ms" } }, function(ctx) error("no") end)
local after = flow.task("after", function(ctx, x) return x end)
return flow.pipeline("retry", {}, function() return { thrice(), after(never()) } end)
""")
        self.assertIn(" 2 ran, 3 retried, 1 failed, 1 skipped", self.exits(1, self.flow("run", "retry.lua")).out.splitlines()[-1])
        self.assertEqual(self.attempts(), {"thrice": 3, "never": 2, "after": 0})

    def test_a_task_that_failed_before_any_attempt_did_not_run(self):
        self.write("none.lua", r"""
local flow = require "flow"
local list = flow.task("list", function(ctx) return "no list" end)
local each = flow.task("each", function(ctx, x) return x end)
return flow.pipeline("none", {}, function() return flow.map(each, list()) end)
""")
        done = self.exits(1, self.flow("run", "none.lua"))
        self.assertIn(" 1 ran, 0 retried, 1 failed;", done.out.splitlines()[-1])

    def test_the_duration_of_a_run_is_that_of_its_task(self):
        self.write("one.lua", r"""
local flow = require "flow"
local one = flow.shell("one", { command = "sleep 0.2" })
return flow.pipeline("one", {}, function() return one() end)
""")
        last = self.good("run", "one.lua").out.splitlines()[-1]
        number, unit = re.search(r"; ([\d.]+)(ms|s); state", last).groups()
        took_ms = float(number) * (1 if unit == "ms" else 1000)
        step_ms = 1 if unit == "ms" else 100  # seconds are truncated to tenths
        task_ms = round(self.tasks()["one"]["duration_s"] * 1000)
        self.assertGreaterEqual(round(took_ms), task_ms // step_ms * step_ms)

    def source(self):
        self.write("source.lua", SOURCE)
        self.good("run", "source.lua", "--param", "folder=" + self.folder)

    def test_a_retry_runs_the_task_and_its_changed_dependents(self):
        self.source()
        self.assertEqual(self.show()["result"], [2, "apart"])
        self.good("retry", "last", "source")
        self.assertEqual(self.show()["result"], [4, "apart"])
        self.assertEqual(self.attempts(), {"source": 2, "double": 2, "apart": 1})
        self.assertEqual(self.read("source.log"), "source\n" * 2)
        self.source()  # the cache holds the new result
        self.assertEqual(self.show()["result"], [4, "apart"])
        self.assertEqual(self.attempts(), {"source": 0, "double": 0, "apart": 0})

    def test_a_retry_with_an_equal_result_runs_nothing_else(self):
        self.open("same")
        self.source()
        self.good("retry", "last", "source")
        self.assertEqual(self.attempts(), {"source": 2, "double": 1, "apart": 1})
        self.assertEqual(self.show()["result"], [2, "apart"])

    def test_a_retry_of_a_task_without_dependents_runs_it_alone(self):
        self.source()
        self.good("retry", "last", "apart")
        self.assertEqual(self.attempts(), {"source": 1, "double": 1, "apart": 2})
        self.exits(2, self.flow("retry", "last", "aparts"), "did you mean `apart`?")

    def test_a_large_file_that_changes_after_an_attempt_is_detected_by_the_next(self):
        self.open("large.bin")
        os.truncate(self.path("large.bin"), 65 << 20)
        self.write("large.lua", LARGE)
        words = ["run", "large.lua", "--param", "gate=" + self.path("gate"), "--param", "file=large.bin"]
        run = self.start(*words)
        self.until_holds(str(65 << 20))
        with open(self.path("large.bin"), "ab") as file:
            file.write(b"more")
        self.open("gate")
        self.exits(1, self.end(run), "input changed")
        self.assertEqual({name: task["status"] for name, task in self.tasks().items()},
                         {"early": "succeeded", "hold": "succeeded", "late": "failed"})
        self.exits(1, self.flow("resume"), "input changed")
        self.good(*words)  # uses the file as it is now, and none of the old bytes
        more = "%d\n" % ((65 << 20) + 4)
        self.assertEqual(self.show()["result"], [more, more])

    def test_a_signal_while_the_run_is_created_leaves_a_run_to_resume(self):
        self.write("slow.lua", HOLD + """
local n = 0
for i = 1, 2e7 do n = n + i %% 7 end
return flow.pipeline("slow", {}, function() return hold("%s", "go").stdout end)
""" % self.path("gate"))
        run = self.start("run", "slow.lua")
        self.until("it takes signals", lambda: catches(run.pid, signal.SIGINT))
        run.send_signal(signal.SIGINT)
        self.exits(3, self.end(run))
        self.assertEqual([each["status"] for each in self.runs()], ["interrupted"])
        self.open("gate")
        self.assertEqual(self.good("resume", "--json").lines()[-1]["result"], "go\n")


if __name__ == "__main__":
    main()
