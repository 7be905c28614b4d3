#!/usr/bin/env python3
"""Tasks that run flow themselves, with the state of their own run.

usage: nested.py --flow BIN [TEST...]
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import OPTIONS, Place, main  # noqa: E402

INNER = r'''
local flow = require "flow"
local inner = flow.shell("inner", { command = [[echo within]], cache = false })
return flow.pipeline("inner", {}, function() return inner {}.stdout end)
'''
OUTER = r'''
local flow = require "flow"
local shell = flow.shell("shell", { args = { "flow", "script" }, cache = false,
  command = [[if "{flow}" run {script} -q; then echo done; else echo refused with $?; fi]] })
local lua = flow.task("lua", { cache = false }, function(ctx, program, script)
  local _, _, code = os.execute(program .. " run " .. script .. " -q")
  return code == 0 and "done\n" or "refused with " .. code .. "\n"
end)
local tasks = { shell = shell, lua = lua }
return flow.pipeline("outer", { flow = flow.param.string {}, script = flow.param.string {}, kind = flow.param.string {} },
  function(p)
    local called = tasks[p.kind](p.flow, p.script)
    return p.kind == "shell" and called.stdout or called
  end)
'''.replace('"{flow}"', "{flow}")


class Nested(Place):
    def outer(self, kind, *options):
        self.write("inner.lua", INNER)
        self.write("outer.lua", OUTER)
        self.good("run", "outer.lua", "--name", "outer", "--param", "kind=" + kind, "--param", "flow=" + OPTIONS.flow,
                  "--param", "script=" + self.path("inner.lua"), *options)
        return self.show("outer")["result"]

    def test_a_run_that_would_wait_for_its_own_task_is_rejected(self):
        for kind in ("shell", "lua"):
            with self.subTest(kind):
                self.assertEqual(self.outer(kind, "--jobs", "1"), "refused with 2\n")
                logs = self.good("logs", "outer").out
                for words in ("`%s`" % kind, "hold 1 of 1 CPUs", "`inner`", "--jobs", "--state"):
                    self.assertIn(words, logs)
        self.assertEqual([run["pipeline"] for run in self.runs()], ["outer", "outer"])

    def test_an_inner_run_starts_if_its_parent_task_leaves_enough_resources(self):
        for kind in ("shell", "lua"):
            with self.subTest(kind):
                self.assertEqual(self.outer(kind, "--jobs", "2"), "done\n")
        self.assertEqual(sorted(run["status"] for run in self.runs()), ["succeeded"] * 4)

    def test_a_separate_state_has_its_own_resources(self):
        self.write("inner.lua", INNER)
        self.write("apart.lua", r'''
local flow = require "flow"
local apart = flow.shell("apart", { args = { "flow", "script" }, cache = false,
  command = [[{flow} run {script} -q --state own && {flow} get last --state own]] })
return flow.pipeline("apart", { flow = flow.param.string {}, script = flow.param.string {} }, function(p)
  return apart(p.flow, p.script).stdout
end)
''')
        self.good("run", "apart.lua", "--jobs", "1", "--param", "flow=" + OPTIONS.flow, "--param",
                  "script=" + self.path("inner.lua"))
        self.assertIn("within", self.show()["result"])


if __name__ == "__main__":
    main()
