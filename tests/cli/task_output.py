#!/usr/bin/env python3
"""`--logs`: what tasks log and write appears while they run, after the names of the tasks.

usage: task_output.py --flow BIN [TEST...]
"""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

SCRIPT = """
local flow = require "flow"
local say = flow.shell("say", { env = { TOKEN = flow.env("TOKEN") },
  command = [[echo first; echo second >&2; printf 'with %%s\\n' "$TOKEN"; until [ -e %s ]; do sleep 0.05; done; echo last]] })
local note = flow.task("note", { retries = { max = 1, backoff = "10ms" } }, function(ctx, text)
  ctx:log("%%s, attempt %%d", text, ctx.attempt)
  if ctx.attempt == 1 then error("again") end
end)
local both = flow.shell("both", { ranks = 2, command = "echo rank $RANK of $WORLD_SIZE" })
return flow.pipeline("output", {}, function()
  return { say {}, note("a note"):tag("s3"), both {} }
end)
"""
LINES = ["say | first", "say | second", "say | with ***", "say | last", "note[s3] | a note, attempt 1",
         "note[s3]@2 | a note, attempt 2", "both | rank 0 of 2", "both rank 1 | rank 1 of 2"]


class TaskOutput(Place):
    def setUp(self):
        super().setUp()
        self.env["TOKEN"] = "very-secret"
        self.write("output.lua", SCRIPT % self.path("gate"))

    def test_lines_arrive_while_the_task_runs(self):
        run = self.start("run", "output.lua", "--logs", "-j", "4")
        seen = []
        while "say | with ***\n" not in seen:
            line = run.stdout.readline()
            self.assertTrue(line, seen)
            seen.append(line)
        self.open("gate")
        seen += run.stdout.readlines()
        self.assertEqual(run.wait(), 0)
        for line in LINES:
            self.assertIn(line + "\n", seen)
        self.assertNotIn("very-secret", "".join(seen))

    def test_without_the_option_only_the_log_has_them(self):
        self.open("gate")
        done = self.good("run", "output.lua", "-j", "4")
        self.assertNotIn(" | ", done.out)
        self.assertIn("first", self.good("logs", "last", "say").out)

    def test_events_have_them(self):
        self.open("gate")
        done = self.good("run", "output.lua", "--logs", "--json", "-j", "4")
        events = [json.loads(line) for line in done.out.splitlines()]
        logs = {(e["task"], e.get("tag"), e["attempt"], e["rank"], e["stream"], e["text"].rstrip("\n"))
                for e in events if e.get("event") == "log"}
        for wanted in (("say", None, 1, 0, "stderr", "second"), ("note", "s3", 2, 0, "log", "a note, attempt 2"),
                       ("both", None, 1, 1, "stdout", "rank 1 of 2")):
            self.assertIn(wanted, logs)

    def test_a_client_of_a_writer_and_a_resume(self):
        writer = self.start("run", "output.lua", "-j", "4", "--name", "held")
        self.until("the task runs", lambda: "first" in self.flow("logs", "held", "say").out)
        self.write("other.lua", "local flow = require 'flow'\nlocal t = flow.task('t', function(ctx) ctx:log('hello') end)\n"
                   "return flow.pipeline('other', {}, function() return t() end)")
        done = self.good("run", "other.lua", "--logs", "--quiet")
        self.assertIn("t | hello", done.out)
        self.kill(writer)
        self.open("gate")
        self.exits(0, self.flow("resume", "held", "--logs", "-j", "4"), "say@2 | last")

    def test_logs_end_with_the_failures(self):
        self.write("fails.lua", """
local flow = require "flow"
local bad = flow.task("bad", function(ctx) ctx:log("working") error("boom") end)
local slow = flow.shell("slow", { timeout = "50ms", command = "sleep 60" })
local loud = flow.shell("loud", { command = [[printf 'only %s\\n' once >&2; exit 7]] })
local after = flow.task("after", function(ctx, x) end)
return flow.pipeline("fails", {}, function() return { bad(), slow {}, loud {}, after(slow {}) } end)
""")
        self.exits(1, self.flow("run", "fails.lua", "-j", "4"))
        done = self.good("logs", "last", "bad")
        self.assertEqual(done.out, "working\n")
        self.assertIn("error: `bad` failed: ", done.err)
        self.assertIn("boom", done.err)
        for words in (["slow"], ["slow", "-f"], ["slow@1"]):
            done = self.good("logs", "last", *words)
            self.assertEqual(done.out, "")
            self.assertIn("`slow` failed: ", done.err)
            self.assertNotIn("boom", done.err)
        done = self.good("logs", "last", "loud")
        self.assertEqual(done.out, "only once\n")
        self.assertIn("ended with exit code 7", done.err)
        self.assertNotIn("only once", done.err)
        self.assertIn("`after` was skipped: ", self.good("logs", "last", "after").err)
        done = self.good("logs", "last", "bad", "--json")
        self.assertEqual([line["text"] for line in done.lines()], ["working"])
        self.assertIn("boom", done.err)
        done = self.good("logs")
        for task in ("bad", "slow", "loud"):
            self.assertIn("`%s` failed: " % task, done.err)
        self.assertNotIn("`after`", done.err)

    def test_a_cached_task_has_the_log_of_the_run_that_computed_it(self):
        self.write("cached.lua", """
local flow = require "flow"
local echo = flow.shell("echo", { args = { "x" }, command = "echo {x}" })
local mute = flow.shell("mute", { command = "true" })
return flow.pipeline("c", { n = flow.param.int { default = 1 } }, function(p) return { flow.map(echo, { "a", "b", p.n }), mute {} } end)
""")
        self.good("run", "cached.lua")
        self.good("run", "cached.lua", "--param", "n=2")
        self.assertEqual(self.good("logs", "last", "echo[2]").out, "b\n")
        self.assertEqual(sorted(self.good("logs", "last", "echo").out.split()), ["2", "a", "b"])
        self.assertEqual(self.good("logs", "last").out, "echo[3] | 2\n")
        done = self.good("logs", "last", "mute")
        self.assertEqual((done.out, done.err), ("", "`mute` is cached: the run that computed its result has no log of it\n"))


if __name__ == "__main__":
    main()
