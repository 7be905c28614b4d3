#!/usr/bin/env python3
"""The environment of a task's programs and libraries: that of their own run, and nothing of another run.

usage: environment.py --flow BIN [TEST...]
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import HOLD, Place, main  # noqa: E402

HEAD = 'local flow = require "flow"\n'

# The environment as each of them sees it, one NAME=VALUE per item. `getenv` is called with `names`.
VIEWS = HOLD + r'''
local function split(text)
  local items = {}
  for item in text:gmatch("([^\0]+)") do items[#items + 1] = item end
  return items
end
local function output(command)
  local program = assert(io.popen(command))
  local text = program:read("a")
  program:close()
  return split(text)
end
local C_GETENV = [[import ctypes, sys
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
for name in sys.argv[1].split(","):
    value = libc.getenv(name.encode())
    if value is not None:
        sys.stdout.buffer.write(name.encode() + b"=" + value + b"\0")]]
local function views(ctx, names, python)
  local own = {}
  for name in names:gmatch("[^,]+") do
    local value = os.getenv(name)
    if value then own[#own + 1] = name .. "=" .. value end
  end
  local all = { getenv = own, popen = output("env -0"), proc = output("cat /proc/self/environ"),
                c = output(python .. " -c '" .. C_GETENV .. "' " .. names) }
  assert(os.execute("env -0 > " .. ctx.dir .. "/seen"))
  local file = assert(io.open(ctx.dir .. "/seen", "rb"))
  all.execute = split(file:read("a"))
  file:close()
  return all
end
local open = flow.task("open", { cache = false }, views)
local own = flow.task("own", { cache = false, env = { X = "lit", LEAKME = "mine" } }, views)
local warm = flow.task("warm", { cache = false, env = { WARM = "up" } }, function() return (os.execute("true")) end)
local params = { names = flow.param.string {}, python = flow.param.string {}, gate = flow.param.string { default = "" } }
return {
  holding = flow.pipeline("holding", params, function(p)
    local first = warm()
    return hold(p.gate, "held"):after(first)
  end),
  looking = flow.pipeline("looking", params, function(p)
    return { open = open(p.names, p.python), own = own(p.names, p.python) }
  end),
}
'''


class Environment(Place):
    def pipeline(self, which):
        self.write(which + ".lua", VIEWS.replace("return {\n  holding", "local all = {\n  holding")
                   + "return all." + which + "\n")
        return which + ".lua"

    def run_of_another(self, **variables):
        """A run that is the writer of the state, and whose executors are warm."""
        names = self.names(variables)
        writer = self.start("run", self.pipeline("holding"), "--jobs", "2", "--param", "gate=" + self.path("gate"),
                            "--param", "names=" + names, "--param", "python=" + sys.executable, **variables)
        self.until_holds("held")
        return writer

    @staticmethod
    def names(variables):
        return ",".join(sorted(variables))

    def test_no_variable_of_one_run_is_seen_in_another(self):
        first = {"LEAKME": "secretA", "ONLY_A": "of a", "OTHER_A": "more of a"}
        writer = self.run_of_another(**first)
        kept = {name: self.env[name] for name in ("PATH", "HOME", "TMPDIR") if name in self.env}
        second = dict(kept, ONLY_B="of b", STATE_B="2")
        names = self.names(dict(self.env, **first, **second, X="", WARM=""))
        whole, self.env = self.env, second
        self.good("run", self.pipeline("looking"), "--param", "names=" + names, "--param", "python=" + sys.executable)
        self.env = whole
        result = self.show()["result"]
        # Variables that a shell or flow itself adds.
        added = ("FLOW_", "CUDA_", "PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE")
        for task, own in (("open", {}), ("own", {"X": "lit", "LEAKME": "mine"})):
            expected = dict(second, **own)
            for view, items in result[task].items():
                seen = dict(item.split("=", 1) for item in items)
                seen = {name: value for name, value in seen.items() if not name.startswith(added)}
                self.assertEqual(seen, expected, (task, view))
        self.open("gate")
        self.exits(0, self.end(writer))

    def test_programs_have_variables_with_their_attempt(self):
        self.write("who.lua", HEAD + r'''
local who = flow.task("who", { retries = 1 }, function(ctx, number)
  local program = assert(io.popen("echo $FLOW_RUN $FLOW_TASK $FLOW_ATTEMPT"))
  local said = program:read("l")
  program:close()
  assert(said == ("%s %s %d"):format(os.getenv("FLOW_RUN"), os.getenv("FLOW_TASK"), os.getenv("FLOW_ATTEMPT")))
  assert(os.getenv("FLOW_RUN") == ctx.run)
  if ctx.attempt == 1 then error("once more") end
  return said
end)
return flow.pipeline("who", {}, function() return { who(1), who(2) } end)
''')
        self.good("run", "who.lua", "--jobs", "1")
        run = self.show()
        self.assertEqual(run["result"], ["%s who 2" % run["run"], "%s who#2 2" % run["run"]])

    def test_a_resumed_run_has_the_environment_of_the_resume(self):
        writer = self.run_of_another()
        self.write("mode.lua", HEAD + r'''
local mode = flow.task("mode", { env = { TOKEN = flow.env("MODE") } }, function()
  local program = assert(io.popen("echo $MODE $TOKEN"))
  local said = program:read("l")
  program:close()
  if os.getenv("MODE") ~= "good" then error("MODE is another") end
  return said == "good good"
end)
return flow.pipeline("mode", {}, function() return mode() end)
''')
        self.exits(1, self.flow("run", "mode.lua", MODE="wrong"), "MODE is another")
        self.good("resume", "last", MODE="good")
        self.assertEqual(self.show()["result"], True)
        self.open("gate")
        self.exits(0, self.end(writer))


if __name__ == "__main__":
    main()
