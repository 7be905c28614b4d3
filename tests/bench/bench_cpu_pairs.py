#!/usr/bin/env python3
"""The CPU time of all processes of a run of short durable tasks, beside that of another build.

usage: bench_cpu_pairs.py --flow BIN --base BIN [--tasks N] [--pairs N]

The builds alternate, and so does the one that begins. The figure is the mean of the pairs' ratios (BIN / base) with its 95% confidence
interval. CPU time changes less than wall-clock time while other programs run. States are below $FLOW_BENCH_DIR or the temporary folder.
"""
import argparse
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

SCRIPT = """local flow = require "flow"
local number = flow.task("number", function(ctx, i) return i end)
return flow.pipeline("independent", {}, function()
  for i = 1, %d do number(i) end
end)
"""
RESAMPLES = 2_000


def cpu_seconds(flow, folder, script):
    """Of the process and its executors, which it waits for."""
    state = os.path.join(folder, "state")
    process = subprocess.Popen([flow, "run", script, "--state", state, "--quiet"], cwd=folder, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    shutil.rmtree(state, ignore_errors=True)
    if process.returncode != 0:
        sys.exit("`%s run` failed with %d" % (flow, process.returncode))
    return used.ru_utime + used.ru_stime


def interval(ratios):
    """By resampling: the distribution of ratios is not known."""
    draw = random.Random(1)
    means = sorted(statistics.fmean(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return means[math.floor(0.025 * RESAMPLES)], means[math.ceil(0.975 * RESAMPLES) - 1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow", required=True)
    parser.add_argument("--base", required=True)
    parser.add_argument("--tasks", type=int, default=50_000)
    parser.add_argument("--pairs", type=int, default=20)
    options = parser.parse_args()
    builds = [os.path.abspath(options.flow), os.path.abspath(options.base)]
    folder = tempfile.mkdtemp(prefix="flow-bench-", dir=os.environ.get("FLOW_BENCH_DIR"))
    try:
        script = os.path.join(folder, "independent.lua")
        with open(script, "w", encoding="utf-8") as file:
            file.write(SCRIPT % options.tasks)
        for build in builds:
            cpu_seconds(build, folder, script)  # the files are cached from now on
        ratios, own = [], []
        for pair in range(options.pairs):
            used = {build: cpu_seconds(build, folder, script) for build in (builds if pair % 2 == 0 else builds[::-1])}
            own.append(used[builds[0]])
            ratios.append(used[builds[0]] / used[builds[1]])
        low, high = interval(ratios)
        print(json.dumps({"bench": "cpu_pairs", "tasks": options.tasks, "pairs": options.pairs,
                          "cpu_us_per_task": round(statistics.fmean(own) / options.tasks * 1e6, 3),
                          "ratio": round(statistics.fmean(ratios), 4), "interval_95": [round(low, 4), round(high, 4)]}))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


main()
