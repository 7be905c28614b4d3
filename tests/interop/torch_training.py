#!/usr/bin/env python3
"""A GPT of 10 million parameters, trained for 200 steps, or those of FLOW_TRAINING_STEPS, with AdamW from the same safetensors file on the same batches,
has PyTorch's losses within 1e-3, step by step.

usage: torch_training.py --flow BIN [--steps N]
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

try:
    import numpy
    import torch
except ImportError as missing:
    print(f"skipped: {missing.name} is not installed for {sys.executable} (Debian: python3-torch, python3-numpy)")
    sys.exit(77)
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch_gpt  # noqa: E402

SIZE = {"vocabulary": 96, "context": 32, "width": 384, "heads": 6, "layers": 6}
BATCH = 4
TOLERANCE = 1e-3
# FLOW_TEST_SEED sets another; with some, such as 1577687354, training itself amplifies rounding
# errors to 1e-3
SEED = 1

SCRIPT = """
local flow = require "flow"
local train = flow.task("train", { cpus = 2 }, function(ctx, folder, size, steps)
  local model = flow.models.gpt(size)
  model:load((flow.safetensors.load(folder .. "/start.safetensors")))
  local opt = flow.optim.adamw(model, { lr = 3e-4, weight_decay = 0.1 })
  local tokens = flow.data.npy(folder .. "/tokens.npy")
  local losses = {}
  for step = 1, steps do
    local batch = tokens[step]
    local loss = model:loss(batch[{ {}, { 1, size.context } }], batch[{ {}, { 2, size.context + 1 } }])
    opt:zero_grad()
    loss:backward()
    flow.optim.clip_grad_norm(model, 1)
    opt:step()
    losses[step] = loss:item()
  end
  return { losses = losses, parameters = model:count() }
end)
return flow.pipeline("training", { folder = flow.param.string {}, steps = flow.param.int {} }, function(p)
  return train(p.folder, %s, p.steps)
end)
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow", required=True)
    parser.add_argument("--steps", type=int, default=int(os.environ.get("FLOW_TRAINING_STEPS", "200")))
    arguments = parser.parse_args()
    seed = int(os.environ.get("FLOW_TEST_SEED", SEED))
    torch.manual_seed(seed)
    model = torch_gpt.Gpt(**SIZE)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, 0, 0.02)
    # A text with structure to learn: most tokens are a function of the two before.
    follows = torch.randint(0, SIZE["vocabulary"], (SIZE["vocabulary"], 7))
    tokens = torch.randint(0, SIZE["vocabulary"], (arguments.steps, BATCH, SIZE["context"] + 1))
    for t in range(2, SIZE["context"] + 1):
        known = follows[tokens[..., t - 1], tokens[..., t - 2] % 7]
        tokens[..., t] = torch.where(torch.rand(tokens.shape[:2]) < 0.9, known, tokens[..., t])
    with tempfile.TemporaryDirectory(prefix="flow-training-") as folder:
        state = {torch_gpt.flow_name(name): value for name, value in model.state_dict().items()}
        torch_gpt.write_safetensors(folder + "/start.safetensors", state)
        numpy.save(folder + "/tokens.npy", (tokens + 1).numpy())
        script = folder + "/training.lua"
        with open(script, "w") as out:
            size = ", ".join(f"{name} = {value}" for name, value in SIZE.items())
            out.write(SCRIPT % ("{ " + size + " }"))
        run = subprocess.run([arguments.flow, "run", script, "--param", "folder=" + folder, "--param",
                              f"steps={arguments.steps}", "--json", "--state", folder + "/state"],
                             capture_output=True, text=True)
        if run.returncode != 0:
            print(run.stdout[-2000:], run.stderr[-2000:])
            return 1
        done = json.loads(run.stdout.splitlines()[-1])["result"]

    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    worst, losses = 0, []
    for step in range(arguments.steps):
        loss = model(tokens[step, :, :-1], tokens[step, :, 1:])
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
        opt.step()
        losses.append(loss.item())
        worst = max(worst, abs(losses[-1] - done["losses"][step]))
    learned = losses[-1] < losses[0] - 0.5
    print(f"{done['parameters']} parameters, {arguments.steps} steps: loss {losses[0]:.4f} to {losses[-1]:.4f}, "
          f"at most {worst:.2e} from PyTorch {torch.__version__} (FLOW_TEST_SEED={seed})")
    if not learned:
        print("the loss did not fall: the comparison says nothing")
    return 0 if worst <= TOLERANCE and learned else 1


if __name__ == "__main__":
    sys.exit(main())
