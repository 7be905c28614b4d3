#!/usr/bin/env python3
"""`flow run -`, `flow plan -` and `flow graph -`: the script comes from the standard input.

usage: stdin_script.py --flow BIN [TEST...]
"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import HOLD, OPTIONS, Place, main  # noqa: E402

SCRIPT = """
local flow = require "flow"
local words = require "words"
local read = flow.task("read", function(ctx, path, word)
  local file = io.open(path)
  local text = file:read("a")
  file:close()
  return text .. word
end)
return flow.pipeline("typed", { n = flow.param.int { default = 1 } }, function(p)
  return read(flow.file("data.txt"), words[p.n])
end)
"""


class StdinScript(Place):
    def setUp(self):
        super().setUp()
        self.write("words.lua", 'return { "one", "two" }')
        self.write("data.txt", "text ")

    def begin(self, script, *words):
        process = subprocess.Popen([OPTIONS.flow, *words], cwd=self.folder, env=self.env, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)
        process.stdin.write(script)
        process.stdin.close()
        process.stdin = None
        return process

    def typed(self, script, *words):
        return self.end(self.begin(script, *words))

    def test_modules_and_files_are_those_of_the_working_directory(self):
        self.exits(0, self.typed(SCRIPT, "run", "-"))
        self.assertEqual(self.show()["result"], "text one")
        self.exits(0, self.typed(SCRIPT, "run", "-", "--param", "n=2"))
        self.assertEqual(self.show()["result"], "text two")
        self.exits(0, self.typed(SCRIPT, "plan", "-"), "cached")
        self.exits(0, self.typed(SCRIPT, "graph", "-"), "read")
        self.assertFalse(os.path.exists(self.path("stdin")))
        # The same text in a file has the same keys.
        self.write("stdin.lua", SCRIPT)
        self.good("run", "stdin.lua")
        self.assertTrue(self.tasks()["read"]["cached"])

    def test_an_interrupted_run_is_resumed_with_its_code(self):
        script = HOLD + 'return flow.pipeline("typed", {}, function() return hold("%s", "one").stdout end)' % self.path("gate")
        run = self.begin(script, "run", "-")
        self.until_holds("one")
        self.kill(run)
        self.open("gate")
        done = self.good("resume")
        self.assertEqual(self.show()["result"], "one\n")
        self.assertNotIn("differs", done.out + done.err)
        self.exits(2, self.flow("resume", "last", "--code", "new"), "the script came from the standard input")

    def test_a_run_of_another_writer(self):
        self.write("held.lua", HOLD + 'return flow.pipeline("held", {}, function() return hold("%s", "one").stdout end)' %
                   self.path("gate"))
        writer = self.start("run", "held.lua")
        self.until_holds("one")
        self.exits(0, self.typed(SCRIPT, "run", "-", "--name", "mine"))
        self.assertEqual(self.show("mine")["result"], "text one")
        self.open("gate")
        self.exits(0, self.end(writer))

    def test_errors_name_the_place(self):
        self.exits(2, self.typed("", "run", "-"), "the standard input has no script")
        self.exits(2, self.typed("local flow = require 'flow'\nreturn 1 +", "run", "-"), "stdin:2:")
        self.exits(2, self.typed("local flow = require 'flow'\nerror('no')", "plan", "-"), "stdin:2: no")
        self.exits(2, self.flow("run", "-"), "the standard input has no script")


if __name__ == "__main__":
    main()
