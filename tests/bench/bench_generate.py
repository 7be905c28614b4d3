#!/usr/bin/env python3
"""Tokens per second of model:generate with its cache of keys and values, and without it.

usage: bench_generate.py --flow BIN [--device cuda] [--threads N] [--rounds N] [--dtype bf16]

Both generate the same number of tokens after the same prompt, in turns, in one process; the figures are medians of N
rounds (default 3). One line per figure: tokens per second with the cache, the same without, and their ratio, above 1
if the cache is faster. On the CPU a model of 10 million parameters continues 32 tokens to a context of 256; on a GPU
also one of 124 million 128 tokens to 1024.
"""
import argparse
import datetime
import json
import statistics
import subprocess
import sys
import tempfile

MODELS = {  # options, tokens of the prompt
    "10M": ({"vocabulary": 96, "width": 384, "heads": 6, "layers": 6, "context": 256}, 32),
    "124M": ({"vocabulary": 50257, "width": 768, "heads": 12, "layers": 12, "context": 1024}, 128),
}
NAMES = {"cpu": ["10M"], "cuda": ["10M", "124M"]}
KINDS = ("cached", "uncached")

SCRIPT = """
local flow = require "flow"
local generate = flow.task("generate", { %(needs)s }, function(ctx)
  local model = flow.models.gpt { %(options)s }:to("%(device)s")
  local prompt = flow.randint(1, %(vocabulary)d, { %(prompt)d }, { seed = 1 })
  local function run(kind, count)
    model:generate(prompt, count, { temperature = 0, cache = kind == "cached", dtype = "%(dtype)s" })
  end
  for _, kind in ipairs { "cached", "uncached" } do run(kind, 2) end
  for _ = 1, %(rounds)d do
    for _, kind in ipairs { "cached", "uncached" } do
      print("begin", kind)
      run(kind, %(count)d)
      print("end", kind)
    end
  end
end)
return flow.pipeline("bench", {}, function() return generate() end)
"""


def times_of(arguments, options, prompt, count):
    """{kind: [seconds of each round]}"""
    needs = f"cpus = {arguments.threads}" + (", gpus = 1" if arguments.device == "cuda" else "")
    text = SCRIPT % {"needs": needs, "options": ", ".join(f"{name} = {value}" for name, value in options.items()),
                     "device": arguments.device, "vocabulary": options["vocabulary"], "prompt": prompt, "count": count,
                     "rounds": arguments.rounds, "dtype": arguments.dtype}
    with tempfile.TemporaryDirectory(prefix="flow-bench-") as folder:
        with open(folder + "/bench.lua", "w", encoding="ascii") as out:
            out.write(text)
        subprocess.run([arguments.flow, "run", folder + "/bench.lua", "--state", folder + "/state", "--quiet"], check=True)
        logs = subprocess.run([arguments.flow, "logs", "--json", "--state", folder + "/state"], capture_output=True,
                              text=True, check=True).stdout
    times, began = {kind: [] for kind in KINDS}, None
    for each in map(json.loads, logs.splitlines()):
        mark, _, kind = each["text"].partition("\t")
        if kind not in times:
            continue
        at = datetime.datetime.fromisoformat(each["at"].replace("Z", "+00:00")).timestamp()
        if mark == "begin":
            began = at
        else:
            times[kind].append(at - began)
    if any(len(found) != arguments.rounds for found in times.values()):
        sys.exit("bench_generate.py: not all rounds are in:\n" + logs[-2000:])
    return times


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n", 1)[0])
    parser.add_argument("--flow", required=True)
    parser.add_argument("--device", choices=NAMES, default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["f32", "bf16", "f16"], default="f32", help="of products")
    arguments = parser.parse_args()
    for name in NAMES[arguments.device]:
        options, prompt = MODELS[name]
        count = options["context"] - prompt
        times = times_of(arguments, options, prompt, count)
        cached, uncached = (count / statistics.median(times[kind]) for kind in KINDS)
        print("generate_%s_%s_tokens_per_s %.0f uncached %.0f ratio %.2f"
              % (name, arguments.dtype, cached, uncached, cached / uncached), flush=True)


if __name__ == "__main__":
    main()
