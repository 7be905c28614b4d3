#!/usr/bin/env python3
"""Whole commands as a user meets them, start of the process included, beside make, ninja and Ray.

usage: bench_command.py --flow BIN [--ray PYTHON] [--rounds N] [--tasks N] [--processes N] [--million] [--only NAME...]

Each figure is the median of N rounds (default 5); flow and its peers alternate in the same round. make and ninja are
left out if they are not installed; PYTHON is a Python with Ray. States are below $FLOW_BENCH_DIR or the temporary
folder. --million measures the memory of a run of a million tasks, which takes about half a minute. --only names
figures: hello, nothing, new, layers, processes.
"""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HELLO = """local flow = require "flow"
local hello = flow.task("hello", function(ctx, name) return "hello, " .. name end)
return flow.pipeline("hello", {}, function() return hello("world") end)
"""

INDEPENDENT = """local flow = require "flow"
local number = flow.task("number", function(ctx, i) return i + %(salt)d end)
return flow.pipeline("independent", {}, function()
  for i = 1, %(count)d do number(i) end
end)
"""

# Each task of a layer reads three of the layer before.
LAYERS = """local flow = require "flow"
local sum = flow.task("sum", function(ctx, layer, i, a, b, c) return (a or 0) + (b or 0) + (c or 0) + i + %(salt)d end)
return flow.pipeline("layers", {}, function()
  local last = {}
  for i = 1, %(width)d do last[i] = sum(1, i) end
  for layer = 2, %(depth)d do
    local now = {}
    for i = 1, %(width)d do now[i] = sum(layer, i, last[i], last[i %% %(width)d + 1], last[(i + 6) %% %(width)d + 1]) end
    last = now
  end
end)
"""

PROCESSES = """local flow = require "flow"
local touch = flow.shell("touch", { args = { "i" }, outputs = { out = "out.txt" }, command = "/bin/true > out.txt" })
return flow.pipeline("processes", {}, function()
  for i = 1, %(count)d do touch(i) end
end)
"""

RAY = """
import time
import ray
ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
@ray.remote
def number(i):
    return i
ray.get([number.remote(i) for i in range(100)])
began = time.time()
ray.get([number.remote(i) for i in range(%(count)d)])
print((time.time() - began) / %(count)d)
"""


class Bench:
    def __init__(self, flow, rounds, folder):
        self.flow, self.rounds, self.folder = os.path.abspath(flow), rounds, folder
        self.peak_mib = 0.0

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def seconds(self, *command, cwd=None):
        """The command's wall-clock time. Sets `peak_mib`, the peak memory of its first process."""
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=cwd or self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        took = time.perf_counter() - began
        if process.returncode != 0:
            sys.exit(f"`{' '.join(command)}` failed with {process.returncode}")
        self.peak_mib = usage.ru_maxrss / 1024
        return took

    def run(self, script, state):
        return self.seconds(self.flow, "run", script, "--state", os.path.join(self.folder, state), "--quiet")

    def medians(self, measures):
        """Calls each measure of {name: function(round)} once per round, and returns the medians."""
        values = {name: [] for name in measures}
        for number in range(self.rounds):
            for name, measure in measures.items():
                values[name].append(measure(number))
        return {name: statistics.median(all_of) for name, all_of in values.items()}


def figure(name, value, floor_name, floor):
    print(f"{name} {value:.3f} {floor_name} {floor:.3f} ratio {value / floor if floor else 0:.3f}", flush=True)


def hello(bench):
    script = bench.write("hello.lua", HELLO)
    took = bench.medians({
        "flow": lambda n: bench.run(script, f"hello-{n}"),
        "again": lambda n: bench.run(script, f"hello-{n}"),
        "version": lambda n: bench.seconds(bench.flow, "--version"),
    })
    figure("hello_ms", took["flow"] * 1e3, "target_ms", 50)
    figure("hello_again_ms", took["again"] * 1e3, "start_of_flow_ms", took["version"] * 1e3)


def write_builds(folder, head, rule, command, inputs):
    """A Makefile and a build.ninja in which the command makes each output from its input."""
    with open(os.path.join(folder, "Makefile"), "w") as file:
        file.write(head + "all: " + " ".join(inputs) + "\n")
        file.writelines(f"{output}: {source}\n\t" + command.replace("{in}", source).replace("{out}", output) + "\n"
                        for output, source in inputs.items())
    with open(os.path.join(folder, "build.ninja"), "w") as file:
        file.write(f"rule {rule}\n  command = " + command.replace("{in}", "$in").replace("{out}", "$out") + "\n")
        file.writelines(f"build {output}: {rule} {source}\n" for output, source in inputs.items())


def nothing_to_do(bench, count):
    """`count` tasks that are done; for make and ninja, files that are newer than what they are made from."""
    script = bench.write("independent.lua", INDEPENDENT % {"count": count, "salt": 0})
    bench.run(script, "nothing")
    folder = os.path.join(bench.folder, "made")
    os.mkdir(folder)
    for i in range(count):
        open(os.path.join(folder, f"in{i}"), "w").close()
    for i in range(count):
        open(os.path.join(folder, f"out{i}"), "w").close()
    write_builds(folder, "", "copy", "cp {in} {out}", {f"out{i}": f"in{i}" for i in range(count)})
    measures = {"flow": lambda n: bench.run(script, "nothing")}
    if shutil.which("make"):
        measures["make"] = lambda n: bench.seconds("make", "-rs", cwd=folder)
    if shutil.which("ninja"):
        bench.seconds("ninja", "-j2", cwd=folder)
        measures["ninja"] = lambda n: bench.seconds("ninja", "-j2", cwd=folder)
    took = bench.medians(measures)
    for peer in list(measures)[1:]:
        figure(f"nothing_to_do_{count}_s", took["flow"], f"{peer}_s", took[peer])


def new_tasks(bench, count, ray):
    def once(number):
        script = bench.write("new.lua", INDEPENDENT % {"count": count, "salt": number})
        return bench.run(script, f"new-{number}")

    task = bench.medians({"flow": once})["flow"] / count
    figure("new_task_us", task * 1e6, "target_us", 10)
    if ray:
        done = subprocess.run([ray, "-c", RAY % {"count": 5000}], capture_output=True, text=True, check=True)
        figure("new_task_us", task * 1e6, "ray_without_durability_us", float(done.stdout.split()[-1]) * 1e6)


def layers(bench, depth, width):
    def once(number):
        script = bench.write("layers.lua", LAYERS % {"depth": depth, "width": width, "salt": number})
        return bench.run(script, f"layers-{number}")

    def independent(number):
        script = bench.write("flat.lua", INDEPENDENT % {"count": depth * width, "salt": number})
        return bench.run(script, f"flat-{number}")

    def writes(number):
        path = os.path.join(bench.folder, "synced")
        with open(path, "wb") as file:
            began = time.perf_counter()
            for _ in range(2 * depth):
                file.write(b"x" * 4096)
                file.flush()
                os.fdatasync(file.fileno())
            return time.perf_counter() - began

    took = bench.medians({"layers": once, "independent": independent, "writes": writes})
    figure("layers_s", took["layers"], "independent_and_two_writes_per_layer_s", took["independent"] + took["writes"])


def processes(bench, count):
    script = bench.write("processes.lua", PROCESSES % {"count": count})
    folder = os.path.join(bench.folder, "processes")
    os.mkdir(folder)
    write_builds(folder, "SHELL = /bin/sh\n", "touch", "/bin/true > {out}", {f"out{i}": "" for i in range(count)})

    def clean(*command):
        for name in os.listdir(folder):
            if name.startswith("out") or name.startswith(".ninja"):
                os.unlink(os.path.join(folder, name))
        return bench.seconds(*command, cwd=folder)

    measures = {"flow": lambda n: bench.run(script, f"processes-{n}")}
    if shutil.which("make"):
        measures["make"] = lambda n: clean("make", "-rs", "-j2")
    if shutil.which("ninja"):
        measures["ninja"] = lambda n: clean("ninja", "-j2", "--quiet")
    took = bench.medians(measures)
    figure("process_us", took["flow"] / count * 1e6, "target_us", 430)
    for peer in list(measures)[1:]:
        figure("process_us", took["flow"] / count * 1e6, f"{peer}_us", took[peer] / count * 1e6)


def million(bench):
    script = bench.write("million.lua", INDEPENDENT % {"count": 1_000_000, "salt": 0})
    bench.run(script, "million")
    figure("million_tasks_peak_mib", bench.peak_mib, "target_mib", 400)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("--flow", required=True)
    parser.add_argument("--ray")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=3000)
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flow-bench-", dir=os.environ.get("FLOW_BENCH_DIR")) as folder:
        bench = Bench(asked.flow, asked.rounds, folder)
        wants = lambda name: not asked.only or name in asked.only
        if wants("hello"):
            hello(bench)
        if wants("nothing"):
            nothing_to_do(bench, asked.tasks)
        if wants("new"):
            new_tasks(bench, asked.tasks, asked.ray)
        if wants("layers"):
            layers(bench, 100, asked.tasks // 1000)
        if wants("processes"):
            processes(bench, asked.processes)
        if asked.million:
            million(bench)


if __name__ == "__main__":
    main()
