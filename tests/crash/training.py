#!/usr/bin/env python3
"""A training that is killed at random moments and resumed ends with exactly the weights of an undisturbed one.

Each kill -9 hits the whole process group: the engine and its executors, at any point. The model has dropout, the
batches are shuffled, and the optimizer has moments, so that a repeated step, a repeated batch or a random number that
is drawn again would be detected.
usage: training.py --flow BIN [--kills N]
"""
import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

SCRIPT = r'''
local flow = require "flow"
local train = flow.task("train", { cpus = 2 }, function(ctx, steps, every)
  local tokens = flow.randint(1, 31, { 4000 }, { seed = 5 })
  local model = flow.models.gpt { vocabulary = 31, context = 24, width = 48, heads = 4, layers = 2, dropout = 0.1 }
  local opt = flow.optim.adamw(model, { lr = 3e-3 })
  local state = ctx:restore()
  if state then
    model:load(state.model)
    opt:load(state.opt)
  end
  for step = state and state.step + 1 or 1, steps do
    math.randomseed(ctx.seed + step)
    local index = (flow.randint(0, #tokens - 25, { 8, 1 }) + flow.arange(24):reshape(1, -1)):reshape(-1)
    local loss = model:loss(tokens[index]:reshape(8, -1), tokens[index + 1]:reshape(8, -1))
    opt:zero_grad()
    loss:backward()
    flow.optim.clip_grad_norm(model, 1)
    opt:step()
    if step % every == 0 then ctx:checkpoint { step = step, model = model:state(), opt = opt:state() } end
    print(step, loss:item())
  end
  return { weights = model:state(), from = state and state.step or 0 }
end)
return flow.pipeline("training", { steps = flow.param.int {}, every = flow.param.int {} }, function(p)
  return train(p.steps, p.every)
end)
'''


def result(flow, state):
    shown = subprocess.run([flow, "show", "last", "--json", "--state", state], capture_output=True, text=True, check=True)
    return json.loads(shown.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow", required=True)
    parser.add_argument("--kills", type=int, default=6)
    arguments = parser.parse_args()
    flow = os.path.abspath(arguments.flow)
    seed = int(os.environ.get("FLOW_TEST_SEED", random.randrange(1 << 31)))
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="flow-training-") as folder:
        script = os.path.join(folder, "training.lua")
        with open(script, "w") as out:
            out.write(SCRIPT)
        run = [flow, "run", script, "--param", "steps=600", "--param", "every=7", "--quiet", "--state"]
        began = time.monotonic()
        subprocess.run(run + [folder + "/calm"], check=True, capture_output=True, timeout=300)
        took = time.monotonic() - began
        calm = result(flow, folder + "/calm")["result"]["weights"]

        kills = 0
        command = run + [folder + "/killed"]
        while kills < arguments.kills:
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
            try:
                child.wait(timeout=chance.uniform(0.4, 1.1) * took / arguments.kills)
                break  # it ended before the kill
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                kills += 1
            has_run = subprocess.run([flow, "ls", "--state", folder + "/killed"], capture_output=True, text=True).stdout
            command = [flow, "resume", "--quiet", "--state", folder + "/killed"] if has_run else run + [folder + "/killed"]
        last = subprocess.run([flow, "resume", "--quiet", "--state", folder + "/killed"], capture_output=True, text=True,
                              timeout=300)
        shown = result(flow, folder + "/killed")
        if last.returncode != 0 or shown["status"] != "succeeded":
            print(last.stdout, last.stderr, f"FLOW_TEST_SEED={seed}")
            return 1
        killed = shown["result"]
        different = [name for name in calm if calm[name] != killed["weights"].get(name)]
        if different or len(calm) != len(killed["weights"]):
            print(f"after {kills} kills these weights differ: {different}; FLOW_TEST_SEED={seed}")
            return 1
        if kills and killed["from"] == 0:
            print(f"the last attempt did not go on from a checkpoint; FLOW_TEST_SEED={seed}")
            return 1
        print(f"{len(calm)} weights bit-identical after {kills} kills; the last attempt began after step {killed['from']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
