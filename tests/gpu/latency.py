#!/usr/bin/env python3
"""What a script waits for on a GPU: one line a figure, from the times of the task's log lines.

usage: latency.py --flow BIN

Each figure is the median of 7 rounds in one task, after a warm-up: microseconds an operation of 1,000 small additions, of a
small product, of x:item(), of a step of AdamW on 16 small tensors; GB/s of copies of 256 MiB to the GPU and back; and how
long the first GPU task of a fresh executor takes, from the start of the program.
"""
import argparse
import datetime
import json
import statistics
import subprocess
import tempfile
import time

SCRIPT = """
local flow = require "flow"
local first = flow.task("first", { gpus = 1, cache = false }, function()
  return flow.ones({ 64, 64 }, "cuda"):matmul(flow.ones({ 64, 64 }, "cuda")):sum()
end)
local measure = flow.task("measure", { gpus = 1, cache = false }, function(ctx, warm)
  local function figure(name, count, run)
    run(1)
    for round = 1, 7 do
      print("begin", name, count)
      run(count)
      print("end", name, count)
    end
  end
  local x, y = flow.randn({ 1024 }):to("cuda"), flow.randn({ 1024 }):to("cuda")
  figure("add", 1000, function(count)
    local z
    for i = 1, count do z = x + y end
    z:sum()
  end)
  local a, b = flow.randn({ 256, 256 }):to("cuda"), flow.randn({ 256, 256 }):to("cuda")
  figure("matmul", 1000, function(count)
    local z
    for i = 1, count do z = a:matmul(b) end
    z:sum()
  end)
  local one = flow.ones({ 1 }):to("cuda")
  figure("item", 1000, function(count) for i = 1, count do local _ = one:item() end end)
  local layers = {}
  for i = 1, 8 do layers[i] = flow.nn.linear(64, 64) end
  local model = flow.nn.sequential(layers):to("cuda")
  local opt = flow.optim.adamw(model, { lr = 1e-4 })
  model(flow.randn({ 8, 64 }):to("cuda")):sum():backward()
  figure("adamw_step", 100, function(count)
    for i = 1, count do opt:step() end
    local _ = one:item()
  end)
  local large = flow.zeros({ 1 << 26 })
  local there = large:to("cuda")
  figure("to_gpu", 1, function() there = large:to("cuda"); return there[1] end)
  figure("to_cpu", 1, function() large = there:to("cpu") end)
end)
return flow.pipeline("latency", {}, function() return measure(first()) end)
"""


def at(line):
    return datetime.datetime.fromisoformat(line["at"].replace("Z", "+00:00")).timestamp()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow", required=True)
    flow = parser.parse_args().flow
    with tempfile.TemporaryDirectory(prefix="flow-latency-") as folder:
        with open(folder + "/latency.lua", "w") as out:
            out.write(SCRIPT)
        began = time.monotonic()
        shown = subprocess.run([flow, "run", folder + "/latency.lua", "--state", folder + "/state", "--json"], capture_output=True,
                               text=True)
        took = time.monotonic() - began
        if shown.returncode != 0:
            raise SystemExit(shown.stdout[-2000:] + shown.stderr[-2000:])
        logs = subprocess.run([flow, "logs", "--json", "--state", folder + "/state"], capture_output=True, text=True, check=True).stdout
        tasks = json.loads(subprocess.run([flow, "show", "--json", "--state", folder + "/state"], capture_output=True, text=True,
                                          check=True).stdout)["tasks"]
    rounds, began_at = {}, None
    for line in map(json.loads, logs.splitlines()):
        words = line["text"].split()
        if words[:1] == ["begin"]:
            began_at = at(line)
        elif words[:1] == ["end"]:
            rounds.setdefault((words[1], int(words[2])), []).append(at(line) - began_at)
    for (name, count), times in rounds.items():
        median = statistics.median(times) / count
        if name.startswith("to_"):
            print(f"{name}: {(1 << 28) / median / 1e9:.1f} GB/s")
        else:
            print(f"{name}: {median * 1e6:.1f} us")
    print(f"whole program: {took:.2f} s")
    for task in tasks:
        print("task", task.get("name"), {key: task[key] for key in ("started", "ended", "seconds", "duration") if key in task})


if __name__ == "__main__":
    main()
