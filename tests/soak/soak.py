#!/usr/bin/env python3
"""One head, one worker and one client that serve many runs: the memory of none of them grows.

Prints the resident memory of each during the runs, and compares the end with the value after the first
tenth. Each run has its own code, a plan with 10,000 numbers and an environment of 800 kB, so that a leak of any
of these is detected."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

PAD_BYTES = 100_000  # bytes per variable; the kernel allows 128 KiB
PADS = 8
# Tolerance for threads that exist for a moment, and for stacks that the C library keeps for reuse.
STACKS_SLACK = 12

SCRIPT = r'''
local flow = require "flow"
local one = flow.task("one", function(ctx, run, i) return run * 1000000 + i end)
local sum = flow.task("sum", function(ctx, run, items, weights)
  local total = #weights
  for _, item in ipairs(items) do total = total + item end
  return { sum = total }
end)
return flow.pipeline("soak", { n = flow.param.int {}, run = flow.param.int {} }, function(p)
  local items, weights = {}, {}
  for i = 1, p.n do items[i] = one(p.run, i) end
  for i = 1, 10000 do weights[i] = p.run + i end  -- of the plan
  return sum(p.run, items, weights)
end)
'''


def status(pid):
    """Resident memory in MiB, and the number of thread stacks: a thread that has ended and is not
    joined still has its stack."""
    with open("/proc/%d/status" % pid) as file:
        fields = dict(line.split(":", 1) for line in file if ":" in line)
    stacks = 0  # found by their guard pages
    with open("/proc/%d/maps" % pid) as file:
        for line in file:
            span, access = line.split()[:2]
            begin, end = (int(at, 16) for at in span.split("-"))
            stacks += access == "---p" and end - begin == os.sysconf("SC_PAGE_SIZE")
    return int(fields["VmRSS"].split()[0]) / 1024, stacks


class Soak:
    def __init__(self, options):
        self.options = options
        self.folder = tempfile.mkdtemp(prefix="flow-soak-")
        self.processes = []
        self.env = dict(os.environ, TMPDIR=self.folder)
        self.env.pop("FLOW_STATE", None)

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, words, env=None):
        log = open(self.path("log"), "a")
        process = subprocess.Popen(words, cwd=self.folder, env=env or self.env, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=log, text=True)
        log.close()
        self.processes.append(process)
        return process

    def run(self):
        o = self.options
        state = self.path("state")
        head = self.start([o.flow, "head", "--state", state, "--listen", "127.0.0.1:0", "--json"])
        reported = json.loads(head.stdout.readline())
        worker = self.start([o.flow, "worker", "--join", reported["address"], "--secret-file", reported["secret_file"],
                             "--name", "w", "--dir", self.path("worker"), "--jobs", "2"])
        with open(self.path("soak.lua"), "w") as out:
            out.write(SCRIPT)
        pads = {"SOAK_PAD_%d" % i: "x" * PAD_BYTES for i in range(PADS)}
        client = self.start([o.client, reported["address"], reported["secret_file"], state, self.path("soak.lua"), o.executor,
                             str(o.tasks), str(o.runs), str(o.every)], dict(self.env, **pads))
        names = {"head": head, "worker": worker, "client": client}
        samples = []
        for line in client.stdout:
            samples.append({name: status(process.pid) for name, process in names.items()})
            print("after %4s runs: %s" % (line.strip(), ", ".join(
                "%s %.1f MiB, %d stacks" % (name, *sample) for name, sample in samples[-1].items())), flush=True)
            client.stdin.write("\n")
            client.stdin.flush()
        code = client.wait()
        if code != 0:
            with open(self.path("log")) as log:
                raise SystemExit("the client ended with %d: %s" % (code, log.read()[-2000:]))
        self.check(names, samples)

    def check(self, names, samples):
        o = self.options
        assert len(samples) == o.runs // o.every, samples
        first = samples[max(1, len(samples) // 10) - 1]
        # A heap returns pages with a delay: the minimum of the last samples is the memory in use.
        last = {name: tuple(map(min, zip(*(sample[name] for sample in samples[-3:])))) for name in names}
        runs = o.runs - o.every * max(1, len(samples) // 10)
        wrong = []
        for name in names:
            (before, stacks_before), (after, stacks) = first[name], last[name]
            most = before * 1.05 + o.slack
            print("%s: %.1f to %.1f MiB over %d runs, at most %.1f" % (name, before, after, runs, most))
            if after > most:
                wrong.append("%s grew from %.1f to %.1f MiB over %d runs" % (name, before, after, runs))
            if stacks > stacks_before + STACKS_SLACK:
                wrong.append("%s had stacks of %d threads and has %d" % (name, stacks_before, stacks))
        if wrong:
            raise SystemExit("; ".join(wrong))

    def end(self):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow", required=True)
    parser.add_argument("--executor", required=True)
    parser.add_argument("--client", required=True)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--every", type=int, default=100, help="runs between two samples")
    parser.add_argument("--slack", type=float, default=2.0, help="MiB that caches may still grow by, in addition to 5%%")
    soak = Soak(parser.parse_args())
    try:
        soak.run()
    finally:
        soak.end()


if __name__ == "__main__":
    sys.exit(main())
