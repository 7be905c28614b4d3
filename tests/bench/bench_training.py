#!/usr/bin/env python3
"""One training step of a GPT on the CPU beside PyTorch's, and beside llm.c's program: forward, backward and AdamW.

usage: bench_training.py --flow BIN [--torch PYTHON] [--llmc PROGRAM] [--threads N] [--steps N]

PYTHON is a Python that has torch; PROGRAM is llm.c's train_gpt2, run in its folder, where it finds its checkpoint and
tokens. Both are optional. The figures are medians of the steps, in the same run, one program after the other, twice.
"""
import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile

SIZES = {
    "124M": {"vocabulary": 50257, "context": 64, "width": 768, "heads": 12, "layers": 12},
    "10M": {"vocabulary": 96, "context": 64, "width": 384, "heads": 6, "layers": 6},
}
BATCH = 4

SCRIPT = """
local flow = require "flow"
local train = flow.task("train", { cpus = %(threads)d }, function(ctx, size, batch, steps)
  local model = flow.models.gpt(size)
  local opt = flow.optim.adamw(model, { lr = 1e-4 })
  local x = flow.randint(1, size.vocabulary, { batch, size.context })
  local y = flow.randint(1, size.vocabulary, { batch, size.context })
  for step = 1, steps do
    local began = os.clock()
    opt:zero_grad()
    local loss = model:loss(x, y)
    loss:backward()
    opt:step()
    loss:item()
    print(("step took %%.4f"):format(os.clock() - began))
  end
end)
return flow.pipeline("bench", {}, function() return train(%(size)s, %(batch)d, %(steps)d) end)
"""

TORCH = """
import sys, time, torch
sys.path.insert(0, %(folder)r)
import torch_gpt
torch.set_num_threads(%(threads)d)
model = torch_gpt.Gpt(**%(size)r)
try:
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
except (RuntimeError, TypeError):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
x = torch.randint(0, %(vocabulary)d, (%(batch)d, %(context)d))
y = torch.randint(0, %(vocabulary)d, (%(batch)d, %(context)d))
print("torch", torch.__version__)
for step in range(%(steps)d):
    began = time.monotonic()
    opt.zero_grad()
    loss = model(x, y)
    loss.backward()
    opt.step()
    loss.item()
    print("step took %%.4f" %% (time.monotonic() - began))
"""


def median(text, pattern, scale=1.0):
    """Of all steps but the first two, in seconds."""
    times = [float(each) * scale for each in re.findall(pattern, text)][2:]
    if not times:
        sys.exit("no steps in:\n" + text[-2000:])
    return statistics.median(times)


def flow_step(arguments, size):
    with tempfile.TemporaryDirectory(prefix="flow-bench-") as folder:
        fields = ", ".join(f"{name} = {value}" for name, value in size.items())
        with open(folder + "/bench.lua", "w") as out:
            out.write(SCRIPT % {"threads": arguments.threads, "size": "{ " + fields + " }", "batch": BATCH,
                                "steps": arguments.steps})
        subprocess.run([arguments.flow, "run", folder + "/bench.lua", "--state", folder + "/state", "--quiet"], check=True)
        logs = subprocess.run([arguments.flow, "logs", "--state", folder + "/state"], capture_output=True, text=True, check=True)
        return median(logs.stdout, r"step took ([0-9.]+)")


def torch_step(arguments, size):
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop")
    program = TORCH % {"folder": folder, "threads": arguments.threads, "size": size, "batch": BATCH,
                       "vocabulary": size["vocabulary"], "context": size["context"], "steps": arguments.steps}
    done = subprocess.run([arguments.torch, "-c", program], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr[-2000:])
    return median(done.stdout, r"step took ([0-9.]+)"), done.stdout.split("\n", 1)[0]


def llmc_step(arguments):
    folder, program = os.path.split(os.path.abspath(arguments.llmc))
    done = subprocess.run(["./" + program], cwd=folder, capture_output=True, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS=str(arguments.threads)))
    return median(done.stdout, r"took ([0-9.]+) ms", 1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow", required=True)
    parser.add_argument("--torch")
    parser.add_argument("--llmc")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    for name, size in SIZES.items():
        ours = [flow_step(arguments, size)]
        lines = []
        if arguments.torch:
            theirs, version = torch_step(arguments, size)
            lines.append((version, theirs))
        if arguments.llmc and name == "124M":
            lines.append(("llm.c", llmc_step(arguments)))
        ours.append(flow_step(arguments, size))
        step = min(ours)
        print(f"training {name}, {arguments.threads} threads: {step * 1000:.1f} ms a step "
              f"({BATCH * size['context'] / step:.0f} tokens/s)")
        for peer, theirs in lines:
            print(f"training {name} beside {peer}: {theirs / step:.2f} times as fast ({theirs * 1000:.1f} ms)")


if __name__ == "__main__":
    main()
