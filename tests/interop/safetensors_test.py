#!/usr/bin/env python3
"""Files of flow.safetensors and checkpoints equal those of the safetensors library byte for byte, in both directions.

The library and NumPy are installed once from PyPI into a folder next to the build. Exit 77 if that fails.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile

from packages import python_with_packages

SKIP = 77
PACKAGES = ["safetensors==0.4.5", "numpy<2.3"]

PROOF = r'''
import json, os, subprocess, sys
import numpy
from safetensors import safe_open
from safetensors.numpy import save_file, load_file
try:
    import torch
except ImportError:
    torch = None

flow, folder = sys.argv[1:]
NUMPY = {"f32": "float32", "f16": "float16", "f64": "float64", "i64": "int64", "i32": "int32", "u8": "uint8", "bool": "bool"}


def run(script):
    with open(os.path.join(folder, "pipeline.lua"), "w") as out:
        out.write("""
local flow = require "flow"
local task = flow.task("t", { cache = false }, function(ctx)
  local folder = "%s/"
%s
end)
return flow.pipeline("p", {}, function() return task() end)
""" % (folder, script))
    done = subprocess.run([flow, "run", ".", "--quiet", "--json"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = subprocess.run([flow, "show", "last", "--json"], cwd=folder, capture_output=True, text=True)
    return json.loads(shown.stdout)["result"]


def arrays():
    generator = numpy.random.default_rng(1)
    made = {}
    for short, name in NUMPY.items():
        made["w." + short] = generator.integers(0, 2 if short == "bool" else 100, (3, 5)).astype(name)
        made["scalar." + short] = numpy.array(1, dtype=name)
        made["empty." + short] = numpy.zeros((0, 4), dtype=name)
    for name in ["", " ", "a.b/c", "ünïcödé", "\U0001f600", "tab\there", "quote\"back\\slash", "new\nline", "\x01", "__metadata", "x" * 1000]:
        made[name] = generator.standard_normal((2, 2)).astype("float32")
    return made


# What the library writes is read here, changed by nothing, and written again: the same bytes.
given = arrays()
save_file(given, folder + "/theirs.safetensors", metadata={"format": "np"})
listed = run("""
  local all, metadata = flow.safetensors.load(folder .. "theirs.safetensors")
  flow.safetensors.save(folder .. "ours.safetensors", all, metadata)
  local list = {}
  for name, x in pairs(flow.safetensors.header(folder .. "theirs.safetensors")) do list[name] = { x.dtype, x.shape } end
  return list
""")
assert {n: (d, tuple(s)) for n, (d, s) in listed.items()} == \
    {n: ({v: k for k, v in NUMPY.items()}[str(x.dtype)], x.shape) for n, x in given.items()}, listed
theirs, ours = (open(folder + "/" + n + ".safetensors", "rb").read() for n in ("theirs", "ours"))
assert theirs == ours, "the bytes differ"
back = load_file(folder + "/ours.safetensors")
assert back.keys() == given.keys()
for name in given:
    assert back[name].dtype == given[name].dtype and back[name].shape == given[name].shape, name
    assert back[name].tobytes() == given[name].tobytes(), name

# What is made here has the values that were meant.
run("""
  local t = {}
  for _, type in ipairs { "f32", "f16", "f64", "i64", "i32", "u8", "bool" } do
    t[type] = flow.tensor({ { 1, 0, 1 }, { 0, 1, 1 } }, type)
    t["t." .. type] = t[type]:t()
  end
  t.bf16 = flow.tensor({ 1.5, -2, 0 }, "bf16")
  flow.safetensors.save(folder .. "made.safetensors", t, { step = "7" })
""")
with safe_open(folder + "/made.safetensors", "np") as made:
    assert made.metadata() == {"step": "7"}
    for short, name in NUMPY.items():
        expected = numpy.array([[1, 0, 1], [0, 1, 1]]).astype(name)
        for key, want in ((short, expected), ("t." + short, expected.T)):
            got = made.get_tensor(key)
            assert got.dtype == want.dtype and numpy.array_equal(got, want), (key, got)
if torch is not None:
    from safetensors.torch import load_file as load_torch, save_file as save_torch
    x = load_torch(folder + "/made.safetensors")["bf16"]
    assert x.dtype == torch.bfloat16 and x.tolist() == [1.5, -2.0, 0.0], x
    save_torch({"x": torch.tensor([1.5, 3.0], dtype=torch.bfloat16)}, folder + "/torch.safetensors")
    assert run('return flow.safetensors.load(folder .. "torch.safetensors").x:to("f32"):table()') == [1.5, 3.0]

# A checkpoint is such a file too.
run("""
  ctx:checkpoint { step = 3, model = { flow.tensor { 1, 2, 3 }, { weight = flow.tensor({ { 4 } }, "i64") } } }
  ctx:restore()
""")
(name,) = [os.path.join(d, f) for d, _, fs in os.walk(folder + "/.flow/checkpoints") for f in fs]
saved = load_file(name)
assert sorted(saved) == ["model.1", "model.2.weight"], saved
assert saved["model.1"].tolist() == [1, 2, 3] and saved["model.2.weight"].tolist() == [[4]]
with safe_open(name, "np") as file:
    assert json.loads(file.metadata()["state"]) == {"step": 3, "model": ["model.1", {"weight": "model.2.weight"}]}
print("equal", "with bf16" if torch is not None else "(bf16 by its values only where torch is: it is not here)")
'''


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow", required=True)
    parser.add_argument("--build", required=True)
    args = parser.parse_args()
    python, why = python_with_packages(os.path.abspath(args.build), "interop-python", PACKAGES, "import safetensors.numpy, numpy")
    if python is None:
        print("skipped: " + why)
        return SKIP
    folder = os.path.realpath(tempfile.mkdtemp(prefix="flow-safetensors-"))
    try:
        return subprocess.run([python, "-c", PROOF, os.path.abspath(args.flow), folder]).returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
