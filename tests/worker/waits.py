#!/usr/bin/env python3
"""ctx:wait and ctx:step: their results, what they release, and what survives a killed process.

usage: waits.py --flow BIN [TEST...]
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import HOLD, Place, main  # noqa: E402

HEAD = 'local flow = require "flow"\n'
ASK = HEAD + r'''
local ask = flow.task("ask", function(ctx)
  local answer, why = ctx:wait("go"%s)
  return { is_null = answer == flow.null, is_nil = answer == nil, answer = answer, why = why }
end)
return flow.pipeline("ask", {}, function() return ask() end)
'''


class Waits(Place):
    def clean(self):
        self.open("gate")
        super().clean()

    def ask(self, options=""):
        self.write("ask.lua", ASK % options)
        run = self.start("run", "ask.lua")
        self.until_waits("ask")
        return run

    def answer(self, *json):
        run = self.ask()
        self.good("signal", "last", "go", *json)
        self.exits(0, self.end(run))
        return self.show()["result"]

    def test_a_signal_delivers_its_value(self):
        cases = (((), {"is_null": False, "is_nil": False, "answer": True}),
                 (("null",), {"is_null": True, "is_nil": False, "answer": None}),
                 (("false",), {"is_null": False, "is_nil": False, "answer": False}),
                 (('{"by":["ann"]}',), {"is_null": False, "is_nil": False, "answer": {"by": ["ann"]}}))
        for json, result in cases:
            with self.subTest(json):
                self.assertEqual(self.answer(*json), result)
        # The result of a task that waited is never reused by another run.
        self.assertEqual([run["counts"]["cached"] for run in self.runs()], [0] * len(cases))

    def test_a_timeout_returns_nil_and_is_reported(self):
        self.write("ask.lua", ASK % ', { timeout = "200ms" }')
        self.good("run", "ask.lua")
        self.assertEqual(self.show()["result"], {"is_null": False, "is_nil": True, "why": "timeout"})
        self.assertEqual(self.tasks()["ask"]["attempts"], 2)

    def test_a_waiting_task_releases_its_slot(self):
        self.write("slot.lua", HOLD + r'''
local ask = flow.task("ask", function(ctx) return ctx:wait("go") end)
return flow.pipeline("slot", { gate = flow.param.string {} }, function(p)
  local asked = ask()
  return { asked, hold(p.gate, "held").stdout }
end)
''')
        run = self.start("run", "slot.lua", "--jobs", "1", "--param", "gate=" + self.path("gate"))
        self.until_waits("ask")
        self.until_holds("held")  # in the only slot
        self.assertEqual(self.show()["status"], "running")
        self.open("gate")
        self.until("it only waits", lambda: self.show()["status"] == "waiting")
        self.good("signal", "last", "go", "5")
        self.exits(0, self.end(run))
        self.assertEqual(self.show()["result"], [5, "held\n"])

    def test_a_signal_before_its_wait_is_kept_and_the_first_answers_every_wait(self):
        self.write("early.lua", HOLD + r'''
local twice = flow.task("twice", function(ctx, held)
  return { ctx:wait("go"), ctx:wait("go"), (ctx:wait("other")) }
end)
return flow.pipeline("early", { gate = flow.param.string {} }, function(p) return twice(hold(p.gate, "held").stdout) end)
''')
        run = self.start("run", "early.lua", "--param", "gate=" + self.path("gate"))
        self.until_holds("held")
        self.good("signal", "last", "go", "1")
        self.good("signal", "last", "go", "2")
        self.good("signal", "last", "other", "3")
        self.open("gate")
        self.exits(0, self.end(run))
        self.assertEqual(self.show()["result"], [1, 1, 3])

    def test_a_wait_survives_all_processes_and_can_be_answered_without_a_writer(self):
        run = self.ask()
        self.kill(run)
        self.assertEqual(self.show()["status"], "interrupted")
        self.good("signal", "last", "go", '"late"')
        # The signal was stored, and nothing ran.
        self.assertEqual(self.show()["status"], "interrupted")
        self.good("resume")
        self.assertEqual(self.show()["result"]["answer"], "late")

    def test_a_wait_continues_after_a_resume(self):
        self.kill(self.ask())
        run = self.start("resume")
        self.until("it waits again", lambda: self.show()["status"] == "waiting")
        self.good("signal", "last", "go", "8")
        self.exits(0, self.end(run))
        self.assertEqual(self.show()["result"]["answer"], 8)

    def test_effects_before_a_wait_need_steps(self):
        self.write("steps.lua", HEAD + r'''
local function add(path, word)
  local file = assert(io.open(path, "a"))
  file:write(word .. "\n")
  file:close()
  return word
end
local work = flow.task("work", { retries = { max = 2, backoff = "1ms" } }, function(ctx, path)
  local got = { ctx:step("a", add, path, "first"), ctx:step("a", add, path, "second"), ctx:step("b", add, path, "third") }
  got[4] = ctx:wait("go")
  got[5] = ctx:step("a", add, path, "after")
  if ctx.attempt < 3 then error("once more") end
  return got
end)
return flow.pipeline("steps", { path = flow.param.string {} }, function(p) return work(p.path) end)
''')
        run = self.start("run", "steps.lua", "--param", "path=" + self.path("log"))
        self.until_waits("work")
        self.kill(run)
        self.good("signal", "last", "go", "4")
        self.good("resume")
        self.assertEqual(self.show()["result"], ["first", "second", "third", 4, "after"])
        self.assertEqual(self.read("log").split(), ["first", "second", "third", "after"])
        self.assertEqual(self.tasks()["work"]["attempts"], 3)

    def test_a_step_inside_a_step_is_distinguished_from_one_outside(self):
        self.write("nested.lua", HEAD + r'''
local t = flow.task("t", { retries = { max = 1, backoff = "1ms" } }, function(ctx, fails_at)
  local outer = ctx:step("outer", function() return ctx:step("load", function() return "inner" end) end)
  if ctx.attempt == fails_at then error("crash here") end
  return { outer, ctx:step("load", function() return "second" end) }
end)
return flow.pipeline("nested", { fails_at = flow.param.int {} }, function(p) return t(p.fails_at) end)
''')
        for fails_at in ("0", "1"):
            self.good("run", "nested.lua", "--param", "fails_at=" + fails_at)
            self.assertEqual(self.show()["result"], ["inner", "second"])

    def test_a_task_whose_signal_was_already_there_counts_as_waiting_too(self):
        self.write("early.lua", HOLD + r'''
local ask = flow.task("ask", function(ctx) return ctx:wait("go") end)
local list = flow.dynamic("list", function(ctx) return { ctx:wait("go") } end)
return flow.pipeline("early", { gate = flow.param.string {} }, function(p)
  local held = hold(p.gate, "one")
  return { ask():after(held), list():after(held) }
end)
''')
        first = self.start("run", "early.lua", "--param", "gate=" + self.path("gate"))
        self.until_holds("one")
        self.good("signal", "last", "go", '"first"')
        self.open("gate")
        self.exits(0, self.end(first))
        self.assertEqual(self.show()["result"], ["first", ["first"]])
        second = self.start("run", "early.lua", "--param", "gate=" + self.path("gate"))
        self.until_waits("ask")
        self.until_waits("list")
        self.good("signal", "last", "go", '"second"')
        self.exits(0, self.end(second))
        self.assertEqual(self.show()["result"], ["second", ["second"]])

    def test_the_result_of_a_task_that_waited_is_cached_if_the_task_asks_for_it(self):
        self.write("cache.lua", HEAD + r'''
local ask = flow.task("ask", { cache = true }, function(ctx) return ctx:wait("go") end)
return flow.pipeline("cache", {}, function() return ask() end)
''')
        run = self.start("run", "cache.lua")
        self.until_waits("ask")
        self.good("signal", "last", "go", "9")
        self.exits(0, self.end(run))
        self.good("run", "cache.lua")
        self.assertEqual((self.show()["result"], self.show()["counts"]["cached"]), (9, 1))

    def test_a_signal_to_a_finished_run_is_rejected(self):
        self.answer("1")
        self.exits(2, self.flow("signal", "last", "go", "2"), "succeeded")
        self.exits(2, self.flow("signal", "last", "gone", "1"), "succeeded")
        # Sent again: equal to the signal that the run received.
        self.good("signal", "last", "go", "1")
        self.exits(2, self.flow("signal", "nobody", "go"), "nobody")


if __name__ == "__main__":
    main()
