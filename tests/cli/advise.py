#!/usr/bin/env python3
"""flow advise: what was measured, what to change, and nothing without data.

usage: advise.py --flow BIN [TEST...]
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

# `fill` writes to all of its memory, so that its peak is known, and ends when it was measured.
SCRIPT = r'''
local flow = require "flow"
local fill = flow.shell("fill", { args = { "mib" }, memory = "2GiB", cpus = 1, outputs = { out = "out" },
  command = [[python3 -c "import sys, time
block = bytearray(int(sys.argv[1]) << 20)
block[::4096] = b'x' * len(block[::4096])
end = time.monotonic() + 1.5
while time.monotonic() < end: pass
open('out', 'w').write('done')" {mib}]] })
local idle = flow.shell("idle", { cpus = 2, outputs = { out = "out" }, command = [[sleep 1.5; echo > {outputs.out}]] })
local stamp = flow.task("stamp", function(ctx, date) return "made at " .. date end)
local use = flow.task("use", function(ctx, text) return #text end)
'''


class Advise(Place):
    def script(self, body):
        self.write("pipeline.lua", SCRIPT +
                   'return flow.pipeline("advise", { date = flow.param.string { default = "" } }, function(p)\n%s\nend)\n' % body)

    def advise(self, *words):
        return self.good("advise", *words, "--json").lines()[0]

    def check_memory(self, mib):
        self.script('return fill("%d")' % mib)
        self.good("run", ".", "--fresh")
        report = self.advise()
        advice, = [each for each in report["advice"] if each["kind"] == "memory"]
        peak = max(task["peak_memory"] for task in self.tasks().values())
        self.assertEqual(advice["task"], "fill")
        self.assertGreaterEqual(advice["value"], peak)
        self.assertLessEqual(advice["value"], 1.2 * peak)
        self.assertEqual(advice["change"], 'memory = "%dMiB"' % (advice["value"] / 2 ** 20))
        self.assertIn("it asks for 2 GiB", advice["evidence"])
        return advice

    def test_memory_that_was_not_used_in_two_runs_with_known_waste(self):
        first = self.check_memory(200)
        self.assertGreater(first["value"], 200 << 20)
        self.assertLess(first["value"], 1.2 * (230 << 20))  # Python itself takes some
        second = self.check_memory(500)
        self.assertEqual((first["attempts"], second["attempts"]), (1, 2))
        self.assertGreater(second["value"], 500 << 20)
        self.assertLess(second["value"], 1.2 * (530 << 20))
        self.assertIn('memory = "', self.good("advise").out)

    def test_cpus_that_were_not_used(self):
        self.script('return idle()')
        self.good("run", ".", "--jobs", "2")
        advice, = self.advise()["advice"]
        self.assertEqual((advice["kind"], advice["task"], advice["change"], advice["value"]), ("cpus", "idle", "cpus = 1", 1))

    def test_a_time_stamp_among_the_arguments_is_found_and_not_what_follows_from_it(self):
        self.script('return use(stamp(p.date))')
        for date in ("monday", "tuesday"):
            self.good("run", ".", "--param", "date=" + date)
        self.assertEqual(self.advise()["advice"], [])  # one change may be meant
        self.good("run", ".", "--param", "date=wednesday")
        advice, = self.advise()["advice"]
        self.assertEqual((advice["kind"], advice["task"]), ("cache", "stamp"))
        self.assertIn("differed in each of 2 runs", advice["evidence"])
        self.assertIn("wednesday", advice["evidence"])

    def test_too_little_data_is_said(self):
        self.script('return stamp("now")')
        self.good("run", ".")
        report = self.advise()
        self.assertEqual((report["runs"], report["attempts"], report["advice"]), (1, 1, []))
        self.assertIn("nothing to advise: 1 successful attempt in 1 run", self.good("advise").out)
        self.good("run", ".")  # all cached
        self.assertEqual(self.advise()["attempts"], 1)
        self.exits(2, self.flow("advise", "nothing"), "nothing")


if __name__ == "__main__":
    main()
