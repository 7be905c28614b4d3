#!/usr/bin/env python3
"""Kills the engine at every failpoint of a turn and of blob writing, with a real state, then resumes until done.

The final result must equal that of an undisturbed run, and tasks that were committed before a kill must not run again.
usage: crash.py --flow BIN [--counts N]
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

FAILPOINTS = ["commit-before", "commit-after", "turn-before-commit", "turn-after-commit",
              "blob-before-temporary", "blob-after-write", "blob-after-sync", "blob-after-rename"]

SCRIPT = r'''
local flow = require "flow"
local numbers = flow.task("numbers", function(ctx, n)
  local list = {}
  for i = 1, n do list[i] = i end
  return list
end)
local square = flow.task("square", { retries = 1 }, function(ctx, i)
  local half = ctx:step("half", function() return i / 2 end)
  ctx:checkpoint { i = i }
  return half * i * 2
end)
-- Many that end at once are committed beside the turns.
local quick = flow.task("quick", function(ctx, i) return i + 1 end)
local big = flow.task("big", function(ctx, n) return string.rep("x", 100000 + n) end)
local lines = flow.shell("lines", { outputs = { text = "text.txt" },
  command = "for i in 1 2 3; do echo {n} $i; done > {outputs.text}; head -c 100000 /dev/zero >> {outputs.text}" })
local sum = flow.task("sum", function(ctx, squares, text)
  local total = 0
  for _, s in ipairs(squares) do total = total + s end
  return { total = total, length = #text }
end)
return flow.pipeline("crash", { n = flow.param.int { default = 12 } }, function(p)
  local list = numbers(p.n)
  local squares = flow.map(square, list)
  local quicks = flow.map(quick, flow.map(quick, numbers(100)))
  local text = big(p.n)
  return { sum = sum(squares, text), file = lines { n = p.n }.text, squares = squares, quicks = quicks }
end)
'''


class State:
    def __init__(self, flow, base, name):
        self.flow, self.folder = flow, os.path.join(base, name)
        os.makedirs(self.folder)
        with open(os.path.join(self.folder, "pipeline.lua"), "w") as out:
            out.write(SCRIPT)

    def call(self, *args, failpoint=None):
        env = dict(os.environ, FLOW_STATE=os.path.join(self.folder, "state"))
        env.pop("FLOW_FAILPOINT", None)
        if failpoint:
            env["FLOW_FAILPOINT"] = failpoint
        done = subprocess.run([self.flow, *args], cwd=self.folder, env=env, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout, done.stderr

    def show(self):
        code, out, _ = self.call("show", "last", "--json")
        return json.loads(out) if code == 0 else None


def succeeded(run):
    return {t["name"]: t["attempts"] for t in run["tasks"] if t["status"] == "succeeded"} if run else {}


def finish(state, problems, label):
    for _ in range(20):
        before = succeeded(state.show())
        run = state.show()
        code, out, err = state.call("resume", "last", "--quiet") if run else state.call("run", ".", "--quiet")
        after = succeeded(state.show())
        for name, attempts in before.items():
            if after.get(name) != attempts:
                problems.append("%s: %s was committed after %s attempts and has %s now" %
                                (label, name, attempts, after.get(name)))
        if code == 0:
            return state.show()
        problems.append("%s: resume ended with %d: %s" % (label, code, err[-1500:]))
        return None
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow", required=True)
    parser.add_argument("--counts", type=int, default=4)
    args = parser.parse_args()
    flow = os.path.abspath(args.flow)
    base = tempfile.mkdtemp(prefix="flow-crash-")
    problems, passed, never = [], 0, set(FAILPOINTS)
    try:
        calm = State(flow, base, "calm")
        code, out, err = calm.call("run", ".", "--quiet")
        if code != 0:
            raise SystemExit("undisturbed run: exit %d\n%s" % (code, err))
        expected = calm.show()["result"]
        for failpoint in FAILPOINTS:
            for count in range(1, args.counts + 1):
                label = "%s:%d" % (failpoint, count)
                state = State(flow, base, label.replace(":", "-"))
                code, out, err = state.call("run", ".", "--quiet", failpoint=label)
                if code == 0:
                    continue  # the failpoint was passed less often
                never.discard(failpoint)
                run = finish(state, problems, label)
                if run and run["result"] != expected:
                    problems.append("%s: the result differs: %s" % (label, run["result"]))
                passed += 1
    finally:
        shutil.rmtree(base, ignore_errors=True)
    for failpoint in sorted(never):
        problems.append("%s: no run was killed there" % failpoint)
    for problem in problems:
        print(problem, file=sys.stderr)
    print("%d passed, %d failed" % (passed, len(problems)))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
