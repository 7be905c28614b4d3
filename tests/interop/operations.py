#!/usr/bin/env python3
"""Shared libraries with wrong declarations, missing functions or crashes: flow.operations names the defect, and only
the attempt is lost.

usage: operations.py --flow BIN
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

HEADER = pathlib.Path(__file__).resolve().parents[2] / "engine/include"
PREFIX = """
#include <flow/operation.h>
#include <stdlib.h>
static int like(FlowCall* c) { c->outputs[0] = c->inputs[0]; return 0; }
static int nothing(FlowCall* c) { (void)c; return 0; }
"""
LIST = """
static const FlowOperation list[] = { %s };
const FlowOperation* flow_operations(int32_t abi, int32_t* count) {
  (void)abi; *count = sizeof list / sizeof *list; return list;
}
"""
# Name, C source, Lua, expected error.
CASES = [
    ("no list", "int x;", "", "it exports no flow_operations"),
    ("another version", PREFIX + "const FlowOperation* flow_operations(int32_t a, int32_t* n) { *n = 0; return NULL; }", "",
     "it does not support version 1 of flow/operation.h"),
    ("many", PREFIX + "const FlowOperation* flow_operations(int32_t a, int32_t* n) { *n = 1 << 30; return (void*)16; }", "",
     "it declares 1073741824 operations"),
    ("a bad name", PREFIX + LIST % '{ "a-b", like, nothing, NULL }', "", "operation 1 needs a name"),
    ("no run", PREFIX + LIST % '{ "a", like, NULL, NULL }', "", "operation 1 needs a name"),
    ("twice", PREFIX + LIST % '{ "a", like, nothing, NULL }, { "a", like, nothing, NULL }', "", "`a` is declared twice"),
    ("no backward", PREFIX + LIST % '{ "a", like, nothing, "b" }', "", "the backward of `a`, `b`, is missing"),
    ("a wrong shape", PREFIX + "static int wrong(FlowCall* c) { c->outputs[0].type = 0; c->outputs[0].rank = 9; return 0; }"
     + LIST % '{ "a", wrong, nothing, NULL }', "ops.a(flow.ones(2))", "describes an output that is not a valid tensor"),
    ("a negative size", PREFIX + "static int wrong(FlowCall* c) { c->outputs[0].rank = 1; c->outputs[0].sizes[0] = -4; return 0; }"
     + LIST % '{ "a", wrong, nothing, NULL }', "ops.a(flow.ones(2))", "describes an output that is not a valid tensor"),
    ("a huge size", PREFIX + "static int wrong(FlowCall* c) { c->outputs[0].rank = 2; c->outputs[0].sizes[0] = "
     "c->outputs[0].sizes[1] = INT64_MAX; return 0; }" + LIST % '{ "a", wrong, nothing, NULL }', "ops.a(flow.ones(2))", "too large"),
    ("many outputs", PREFIX + "static int wrong(FlowCall* c) { c->output_count = 9; return 0; }"
     + LIST % '{ "a", wrong, nothing, NULL }', "ops.a(flow.ones(2))", "describes 9 outputs"),
    ("a message without an end", PREFIX + "static int wrong(FlowCall* c) { for (size_t i = 0; i < c->message_size; i++) "
     "c->message[i] = 'x'; return 1; }" + LIST % '{ "a", wrong, nothing, NULL }', "ops.a(flow.ones(2))", "xxxxxxxxxx"),
    ("no gradient", PREFIX + LIST % '{ "a", like, nothing, NULL }', "ops.a(flow.ones(2):requires_grad_())", "has no backward"),
    ("an argument", PREFIX + LIST % '{ "a", like, nothing, NULL }', 'ops.a(flow.ones(2), 1, "x")', "argument 3 is a string"),
    ("a crash", PREFIX + "static int crash(FlowCall* c) { (void)c; abort(); }" + LIST % '{ "a", like, crash, NULL }',
     "ops.a(flow.ones(2))", "signal"),
    ("no library", None, "", "it can't be loaded"),
]
SCRIPT = """
local flow = require "flow"
local use = flow.task("use", function(ctx, path)
  local ops = flow.operations(path)
  %s
end)
local fine = flow.task("fine", function() return 1 end)
return flow.pipeline("operations", { library = flow.param.path {} }, function(p) return { use(p.library), fine() } end)
"""

# A library that another one replaces: the value that each returns, per task.
REPLACED = """
local flow = require "flow"
local use = flow.task("use", { cache = false }, function(ctx, from, at)
  os.execute("rm -f " .. at .. "; cp " .. from .. " " .. at)
  return flow.operations(at).a(flow.zeros(1)):sum()
end)
return flow.pipeline("replaced", {}, function()
  local first = use("one.so", "at.so")
  local second = use("two.so", "at.so"):after(first)
  local third = use("one.so", "at.so"):after(second)
  return { first, second, third }
end)
"""


def replaced(flow, folder):
    """Returns the defect, or nothing."""
    for number, name in enumerate(["one", "two"], 1):
        fill = "static int fill(FlowCall* c) { *(float*)c->outputs[0].data = %d; return 0; }" % number
        (folder / (name + ".c")).write_text(PREFIX + fill + LIST % '{ "a", like, fill, NULL }')
        subprocess.run(["cc", "-shared", "-fPIC", "-w", f"-I{HEADER}", folder / (name + ".c"), "-o", folder / (name + ".so")], check=True)
    script = REPLACED
    for name in ["one.so", "two.so", "at.so"]:
        script = script.replace('"%s"' % name, '"%s"' % (folder / name))
    (folder / "p.lua").write_text(script)
    state = folder / "state"
    run = subprocess.run([flow, "run", folder / "p.lua", "--jobs", "1", "--quiet", "--state", state], capture_output=True, text=True, timeout=120)
    show = subprocess.run([flow, "show", "last", "--json", "--state", state], capture_output=True, text=True, timeout=120)
    if run.returncode == 0 and json.loads(show.stdout)["result"] == [1, 2, 1]:
        return []
    return [f"a library that was replaced: {run.stdout}{run.stderr}{show.stdout}"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow", required=True)
    flow = parser.parse_args().flow
    if not shutil.which("cc"):
        print("skipped: there is no C compiler")
        return 77
    problems = []
    with tempfile.TemporaryDirectory(prefix="flow-operations-") as base:
        for number, (name, source, lua, expected) in enumerate(CASES):
            folder = pathlib.Path(base, str(number))
            folder.mkdir()
            library = folder / "lib.so"
            if source is None:
                library.write_text("no library at all")
            else:
                (folder / "lib.c").write_text(source)
                subprocess.run(["cc", "-shared", "-fPIC", "-w", f"-I{HEADER}", folder / "lib.c", "-o", library], check=True)
            (folder / "p.lua").write_text(SCRIPT % lua)
            run = subprocess.run([flow, "run", folder / "p.lua", "--param", f"library={library}", "--state", folder / "state"],
                                 capture_output=True, text=True, timeout=120)
            said = run.stdout + run.stderr
            if run.returncode != 1 or expected not in said or "fine: succeeded" not in said:
                problems.append(f"{name}: expected exit 1 and `{expected}`, got {run.returncode}:\n{said}")
        folder = pathlib.Path(base, "replaced")
        folder.mkdir()
        problems += replaced(flow, folder)
    print("\n".join(problems) or f"{len(CASES)} libraries refused, each with its reason")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
