#!/usr/bin/env python3
"""One training step of a GPT compared with PyTorch and with llm.c: forward, backward and AdamW.

usage: bench_training.py --flow BIN [--torch PYTHON] [--llmc PROGRAM] [--threads N] [--steps N] [--device cuda]

PYTHON is a Python with torch; PROGRAM is llm.c's train_gpt2, run in its folder, which has its checkpoint and
tokens. Both are optional. The figures are medians of the wall-clock time per step, in the same run, one program
after another, twice. On the CPU everything is f32, batch 4 and 64 tokens; on a GPU both compute in bf16 with f32
weights, batch 16 and 1024 tokens, and the fraction of the peak given by --peak (in TFLOP/s) is printed.
"""
import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

SIZES = {
    "124M": {"vocabulary": 50257, "width": 768, "heads": 12, "layers": 12},
    "10M": {"vocabulary": 96, "width": 384, "heads": 6, "layers": 6},
}
SHAPES = {"cpu": (4, 64), "cuda": (16, 1024)}  # batch, tokens

SCRIPT = """
local flow = require "flow"
local train = flow.task("train", { %(needs)s }, function(ctx, size, batch, steps)
  local model = flow.models.gpt(size):to("%(device)s")
  local opt = flow.optim.adamw(model, { lr = 1e-4 })
  local x = flow.randint(1, size.vocabulary, { batch, size.context }):to("%(device)s")
  local y = flow.randint(1, size.vocabulary, { batch, size.context }):to("%(device)s")
  print("parameters", model:count())
  print("step")
  for step = 1, steps do
    opt:zero_grad()
    local loss = flow.autocast("%(dtype)s", function() return model:loss(x, y) end)
    loss:backward()
    opt:step()
    loss:item()
    print("step")
  end
end)
return flow.pipeline("bench", {}, function() return train(%(size)s, %(batch)d, %(steps)d) end)
"""

TORCH = """
import sys, time, torch
sys.path.insert(0, %(folder)r)
import torch_gpt
torch.set_num_threads(%(threads)d)
model = torch_gpt.Gpt(**%(size)r).to("%(device)s")
try:
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
except (RuntimeError, TypeError):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
x = torch.randint(0, %(vocabulary)d, (%(batch)d, %(context)d)).to("%(device)s")
y = torch.randint(0, %(vocabulary)d, (%(batch)d, %(context)d)).to("%(device)s")
print("torch", torch.__version__)
for step in range(%(steps)d):
    began = time.monotonic()
    opt.zero_grad()
    with torch.autocast("%(device)s", torch.bfloat16, enabled=%(mixed)r):
        loss = model(x, y)
    loss.backward()
    opt.step()
    loss.item()
    print("step took %%.4f" %% (time.monotonic() - began))
"""


def median(times, text):
    """The median of all steps but the first two, in seconds."""
    if len(times) < 3:
        sys.exit("no steps in:\n" + text[-2000:])
    return statistics.median(times[2:])


def reported(text, pattern, scale=1.0):
    return median([float(each) * scale for each in re.findall(pattern, text)], text)


def flow_step(arguments, size, batch):
    needs = f"cpus = {arguments.threads}" + (", gpus = 1" if arguments.device == "cuda" else "")
    with tempfile.TemporaryDirectory(prefix="flow-bench-") as folder:
        fields = ", ".join(f"{name} = {value}" for name, value in size.items())
        with open(folder + "/bench.lua", "w") as out:
            out.write(SCRIPT % {"needs": needs, "size": "{ " + fields + " }", "batch": batch, "steps": arguments.steps,
                                "device": arguments.device, "dtype": "bf16" if arguments.device == "cuda" else "f32"})
        subprocess.run([arguments.flow, "run", folder + "/bench.lua", "--state", folder + "/state", "--quiet"], check=True)
        logs = subprocess.run([arguments.flow, "logs", "--json", "--state", folder + "/state"], capture_output=True,
                              text=True, check=True).stdout
    lines = [json.loads(each) for each in logs.splitlines()]
    marks = [datetime.datetime.fromisoformat(each["at"].replace("Z", "+00:00")).timestamp()
             for each in lines if each["text"] == "step"]
    count = next(int(each["text"].split()[1]) for each in lines if each["text"].startswith("parameters"))
    return median([after - before for before, after in zip(marks, marks[1:])], logs), count


def torch_step(arguments, size, batch):
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop")
    program = TORCH % {"folder": folder, "threads": arguments.threads, "size": size, "batch": batch,
                       "vocabulary": size["vocabulary"], "context": size["context"], "steps": arguments.steps,
                       "device": arguments.device, "mixed": arguments.device == "cuda"}
    done = subprocess.run([arguments.torch, "-c", program], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr[-2000:])
    return reported(done.stdout, r"step took ([0-9.]+)"), done.stdout.split("\n", 1)[0]


def llmc_step(arguments):
    folder, program = os.path.split(os.path.abspath(arguments.llmc))
    done = subprocess.run(["./" + program], cwd=folder, capture_output=True, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS=str(arguments.threads)))
    return reported(done.stdout, r"took ([0-9.]+) ms", 1e-3)


def print_share(name, count, size, tokens, step, peak):
    # 6 operations per parameter and token, and those of attention (Chowdhery et al., "PaLM",
    # appendix B).
    work = tokens * (6 * count + 12 * size["layers"] * size["width"] * size["context"])
    print(f"training {name}: {work / step / 1e12:.1f} TFLOP/s, {100 * work / step / 1e12 / peak:.1f}% of the peak of {peak:.0f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow", required=True)
    parser.add_argument("--torch")
    parser.add_argument("--llmc")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--device", choices=SHAPES, default="cpu")
    parser.add_argument("--peak", type=float, help="of the device, in TFLOP/s")
    arguments = parser.parse_args()
    batch, context = SHAPES[arguments.device]
    where = f"{arguments.threads} threads" if arguments.device == "cpu" else "bf16"
    for name, size in SIZES.items():
        size = dict(size, context=context)
        first, count = flow_step(arguments, size, batch)
        lines = []
        if arguments.torch:
            theirs, version = torch_step(arguments, size, batch)
            lines.append((version, theirs))
        if arguments.llmc and name == "124M" and arguments.device == "cpu":
            lines.append(("llm.c", llmc_step(arguments)))
        step = min(first, flow_step(arguments, size, batch)[0])
        print(f"training {name}, {where}: {step * 1000:.1f} ms a step ({batch * context / step:.0f} tokens/s)")
        if arguments.peak:
            print_share(name, count, size, batch * context, step, arguments.peak)
        for peer, theirs in lines:
            print(f"training {name} beside {peer}: {theirs / step:.2f} times as fast ({theirs * 1000:.1f} ms)")


if __name__ == "__main__":
    main()
