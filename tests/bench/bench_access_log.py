#!/usr/bin/env python3
"""What the access log of a service costs: the CPU time of its front per request, with and without it.

usage: bench_access_log.py --bin FOLDER [--rounds N] [--seconds S] [--connections N]

FOLDER has flow and http_load (build/release/bin). Two services answer the same small requests, one of them with `access_log = true`. The loads
alternate, N rounds (default 20) of S seconds (default 1) each. The ratio is that of the best round of each, which other programs
disturbed least; the quartiles of the rounds' ratios say how much they did. The requests are as small as they can be, so that the log
costs as much of them as it can.
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess
import tempfile

from serving import Serving, until

PATH = "/v2/models/echo/infer"
BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
SCRIPT = """local flow = require "flow"
local echo = flow.service("echo", { batch = { max = 64 }, access_log = %s }, function(ctx)
  return { predict = function(inputs) return { y = inputs.x } end }
end)
return flow.pipeline("echo_service", {}, function(p) return echo() end)
"""


def front_of(state):
    """The process of the front, whose folder is in the state."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % name, encoding="utf-8", errors="replace") as file:
                words = file.read().split("\0")
        except OSError:
            continue
        if os.path.basename(words[0]) == "flow-front" and any(word.startswith(state + "/") for word in words):
            return int(name)
    return None


def cpu_seconds(pid):
    """Of all its threads, in nanoseconds of the scheduler: ticks are too coarse."""
    total = 0
    for thread in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/schedstat" % (pid, thread), encoding="ascii") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n", 1)[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--connections", type=int, default=16)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory(dir=os.environ.get("FLOW_BENCH_DIR")))
        body = os.path.join(place, "body.json")
        with open(body, "w", encoding="ascii") as file:
            json.dump(BODY, file)
        services = {}
        for name, value in (("log", "true"), ("none", "false")):
            folder = os.path.join(place, name)
            os.mkdir(folder)
            with open(os.path.join(folder, "pipeline.lua"), "w", encoding="ascii") as file:
                file.write(SCRIPT % value)
            service = stack.enter_context(Serving(options.bin, folder))
            services[name] = (service.port, until("the front of the service", lambda: front_of(service.state)))

        def cpu_us(name):
            port, front = services[name]
            before = cpu_seconds(front)
            words = subprocess.run([os.path.join(os.path.abspath(options.bin), "http_load"), str(port), str(options.connections),
                                    str(options.seconds), PATH, body], capture_output=True, check=True, text=True).stdout.split()
            load = {word: float(number) for word, number in zip(words[::2], words[1::2])}
            if load["failed"] > 0:
                raise SystemExit("%d requests failed" % load["failed"])
            return (cpu_seconds(front) - before) / (load["requests_per_s"] * options.seconds) * 1e6

        for name in services:
            cpu_us(name)  # warms up
        rounds = []
        for number in range(options.rounds):
            order = ("log", "none") if number % 2 == 0 else ("none", "log")
            rounds.append({name: cpu_us(name) for name in order})
        ratios = [each["log"] / each["none"] for each in rounds]
        log, none = (min(each[name] for each in rounds) for name in ("log", "none"))
        print("front_cpu_us_per_request %.2f without_log %.2f ratio %.3f quartiles %.3f %.3f %.3f" % (
            log, none, log / none, *statistics.quantiles(ratios, n=4)))


if __name__ == "__main__":
    main()
