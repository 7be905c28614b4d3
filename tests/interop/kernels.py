#!/usr/bin/env python3
"""A pipeline with its own kernels, run as a command: without a GPU a fallback runs or the plan is rejected, an edit of the
source reruns the tasks that use it, and compiled code is kept in the state, also by several flows at once.

usage: kernels.py --flow BIN
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

SCRIPT = """
local flow = require "flow"
local double = flow.kernel("double_all", [[
__global__ void double_all(const float* x, float* y, long long n) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * %(factor)s;
}
]], "x: in f32, y: out f32 like x, n: count of y", { %(options)s })
local twice = flow.task("twice", function(ctx) return double(flow.tensor({ 1, 2 }, "f32")):table() end)
local compiles = flow.task("compiles", { cache = false }, function(ctx)
  local ok, message = pcall(double.compile, double, "sm_90")
  return ok or message
end)
local other = flow.task("other", function(ctx) return 1 end)
return flow.pipeline("kernels", {}, function() return { twice(), compiles(), other() } end)
"""
FALLBACK = "fallback = function(x) return x * 2 end"
NO_COMPILER = "NVRTC, which compiles it, was not found"


class Runs:
    def __init__(self, flow, folder):
        self.flow, self.folder, self.problems = flow, pathlib.Path(folder), []

    def write(self, factor="2", options=FALLBACK, above=""):
        (self.folder / "pipeline.lua").write_text(above + SCRIPT % {"factor": factor, "options": options})

    def start(self, *words, state="state"):
        return subprocess.Popen([self.flow, *words, "--state", self.folder / state], cwd=self.folder, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, *words):
        process = self.start(*(words or ("run", "pipeline.lua")))
        return process.communicate(timeout=120)[0], process.returncode

    def expect(self, holds, what, seen):
        if not holds:
            self.problems.append(f"{what}; seen: {seen}")

    def kept(self, state="state"):
        folder = self.folder / state / "kernels"
        return sorted(folder.iterdir()) if folder.exists() else []


def check_fallback(runs):
    """Returns False if there is no compiler."""
    runs.write()
    said, code = runs.run()
    runs.expect(code == 0 and "[[2.0,4.0]," in said.replace(" ", ""), "the fallback runs", said)
    runs.write(above="-- lower down\n")
    said, code = runs.run()
    runs.expect(code == 0 and "2 cached" in said, "a comment above runs nothing again", said)
    runs.write(factor="2 ")
    said, code = runs.run()
    runs.expect(code == 0 and "1 cached" in said, "an edit of the source runs its task again", said)
    why, _ = runs.run("why", "last", "twice")
    runs.expect("`double` in pipeline.lua changed" in why, "flow why names the kernel", why)
    return NO_COMPILER not in said


def check_refused(runs):
    runs.write(options="")
    said, code = runs.run()
    runs.expect(code == 2 and "started" not in said, "without a fallback the plan is refused", said)
    for words in ("task `twice` has the kernel `double_all`, which needs a GPU", "write `gpus = 1`", "give the kernel a `fallback`"):
        runs.expect(words in said, f"the refusal says {words}", said)


def check_errors(runs):
    runs.write(factor="unknown")
    said, code = runs.run()
    runs.expect(code == 0 and 'pipeline.lua:6: error: identifier \\"unknown\\" is undefined' in said,
                "a compiler's error has the script's line", said)


def check_cache(runs):
    runs.write()
    for path in runs.kept():
        path.unlink()
    runs.run()
    (first,) = runs.kept()
    content, written = first.read_bytes(), first.stat().st_ino
    runs.run()
    runs.expect([first.stat().st_ino] == [path.stat().st_ino for path in runs.kept()] and first.stat().st_ino == written,
                "what was compiled is found again", runs.kept())
    first.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    said, code = runs.run()
    runs.expect(code == 0 and first.read_bytes() == content, "a broken file is written anew", said)
    # Several flows with one state each, and several runs of one flow.
    together = [runs.start("run", "pipeline.lua", state=state) for state in ("state", "a", "state", "b", "state")]
    for process in together:
        said = process.communicate(timeout=120)[0]
        runs.expect(process.returncode == 0 and "true" in said, "runs beside each other", said)
    for state in ("a", "b"):
        runs.expect([path.name for path in runs.kept(state)] == [first.name], "the same name in every state", runs.kept(state))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow", required=True)
    flow = os.path.abspath(parser.parse_args().flow)
    with tempfile.TemporaryDirectory(prefix="flow-kernels-") as folder:
        runs = Runs(flow, folder)
        has_compiler = check_fallback(runs)
        check_refused(runs)
        if has_compiler:
            check_errors(runs)
            check_cache(runs)
        else:
            print("there is no NVRTC: what compiles was left out")
    for problem in runs.problems:
        print(problem)
    return 1 if runs.problems else 0


if __name__ == "__main__":
    sys.exit(main())
