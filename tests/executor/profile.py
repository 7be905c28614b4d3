#!/usr/bin/env python3
"""The ranges that a tool for NVTX sees: of attempts, and within them of the operations on tensors.

usage: profile.py --flow BIN --recorder LIBRARY [TEST...]
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import OPTIONS, Place, main  # noqa: E402

SCRIPT = r'''
local flow = require "flow"
local train = flow.task("train", { retries = { max = 1, backoff = "1ms" } }, function(ctx, i)
  local x = flow.ones(4, 4)
  local y = x:matmul(x)
  if ctx.attempt == 1 then error("not yet") end
  return y
end)
local say = flow.shell("say", { command = [[echo hello]] })
local pair = flow.task("pair", { ranks = 2 }, function(ctx) return ctx.comm.rank end)
return flow.pipeline("profiled", {}, function()
  return { train = flow.map(train, { 1 }), said = say().stdout, pair = pair() }
end)
'''


class Profile(Place):
    def ranges(self):
        """Each range that was opened, as the names of those around it and its own."""
        found, open_ranges = [], {}
        for line in self.read("ranges").splitlines():
            pid, what, *name = line.split(" ", 2)
            stack = open_ranges.setdefault(pid, [])
            if what == "push":
                stack.append(name[0])
                found.append(tuple(stack))
            else:
                self.assertTrue(stack, "a range is closed that was not opened")
                stack.pop()
        self.assertEqual([pid for pid, stack in open_ranges.items() if stack], [])
        return found

    def test_attempts_and_operations_are_nested_ranges(self):
        self.write("pipeline.lua", SCRIPT)
        self.good("run", ".", "--quiet", "--jobs", "2", NVTX_INJECTION64_PATH=OPTIONS.recorder, FLOW_TEST_RANGES=self.path("ranges"))
        ranges = self.ranges()
        attempts = sorted(each[0] for each in ranges if len(each) == 1)
        self.assertEqual(attempts, ["pair #1 rank 0", "pair #1 rank 1", "say #1", "train[1] #1", "train[1] #2"])
        for attempt in ("train[1] #1", "train[1] #2"):
            self.assertIn((attempt, "matmul"), ranges)

    def test_a_library_that_is_not_there_changes_nothing(self):
        self.write("pipeline.lua", SCRIPT)
        self.good("run", ".", "--quiet", NVTX_INJECTION64_PATH=self.path("none.so"))


if __name__ == "__main__":
    main("--recorder")
