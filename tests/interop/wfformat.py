#!/usr/bin/env python3
"""Runs real workflows in WfFormat 1.5 (wfcommons) with flow, kills it at random and resumes until done.

Each task becomes a shell task that reads its inputs, sleeps for its scaled run time and writes its outputs. Checks:
no effect of a committed task is lost or repeated, the order is kept, the results equal those of an undisturbed run,
and the edges that the engine derived from files and `after` equal the declared ones.

usage: wfformat.py --flow BIN [--seed N] [--kills N] [--seconds S] FILE.json…
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time


def lua(text):
    return '"' + "".join(c if 32 <= ord(c) < 127 and c not in '"\\' else "\\%03d" % b
                         for c in text for b in ([ord(c)] if ord(c) < 128 else [63])) + '"'


def convert(workflow, seconds, log):
    """A pipeline whose nodes are the workflow's tasks; returns (lua text, {node name: set of parents})."""
    spec = workflow["workflow"]["specification"]["tasks"]
    times = {t["id"]: t.get("runtimeInSeconds", 0) for t in workflow["workflow"]["execution"]["tasks"]}
    total = sum(times.values()) or 1
    name_of = {t["id"]: re.sub(r"[^A-Za-z0-9_.-]", "_", t["id"])[-100:] for t in spec}
    if len(set(name_of.values())) != len(spec):
        raise SystemExit("task names collide")
    producer = {f: t["id"] for t in spec for f in t.get("outputFiles", [])}
    by_id = {t["id"]: t for t in spec}
    lines = ['local flow = require "flow"', "return flow.pipeline(\"wf\", {}, function()", "end)"]
    defs, calls, edges, done = [], [], {}, set()
    order = []

    def visit(task_id):
        stack = [(task_id, iter(by_id[task_id]["parents"]))]
        while stack:
            current, parents = stack[-1]
            for parent in parents:
                if parent not in done and parent not in [s[0] for s in stack]:
                    stack.append((parent, iter(by_id[parent]["parents"])))
                    break
            else:
                stack.pop()
                if current not in done:
                    done.add(current)
                    order.append(current)

    for t in spec:
        if t["id"] not in done:
            visit(t["id"])
    out_name = {}
    for number, task_id in enumerate(order):
        t = by_id[task_id]
        name = name_of[task_id]
        inputs = [f for f in t.get("inputFiles", []) if f in producer and producer[f] != task_id]
        outputs = t.get("outputFiles", [])
        for k, f in enumerate(outputs):
            out_name[(task_id, f)] = "o%d" % (k + 1)
        declared = {name_of[p] for p in t["parents"]}
        edges[name] = declared
        data_parents = {name_of[producer[f]] for f in inputs}
        pause = seconds * times.get(task_id, 0) / total
        command = "echo start {task} >> {log}; sleep {pause:.3f}; ".format(task=name, log=log, pause=pause)
        digest = "sum=$( (echo %s; cat {files} ) | sha256sum | cut -c1-64); " % name if inputs else \
            "sum=$(echo %s | sha256sum | cut -c1-64); " % name
        command += digest
        for k, f in enumerate(outputs):
            command += 'echo "$sum %d" > {outputs.o%d}; ' % (k + 1, k + 1)
        command += "echo end {task} >> {log}".format(task=name, log=log)
        outs = ", ".join('o%d = "out%d.txt"' % (k + 1, k + 1) for k in range(len(outputs)))
        defs.append("T[%d] = flow.shell(%s, { cache = true, outputs = { %s }, command = %s })" %
                    (number + 1, lua(name), outs, lua(command)))
        files = ", ".join("H[%d].%s" % (order.index(producer[f]) + 1, out_name[(producer[f], f)]) for f in inputs)
        call = "H[%d] = T[%d]{ files = { %s } }" % (number + 1, number + 1, files) if inputs else \
            "H[%d] = T[%d]{}" % (number + 1, number + 1)
        calls.append("  " + call)
        for parent in sorted(declared - data_parents):
            index = [name_of[i] for i in order].index(parent) + 1
            calls.append("  H[%d]:after(H[%d])" % (number + 1, index))
    leaves = [i + 1 for i, task_id in enumerate(order) if not any(task_id in by_id[o]["parents"] for o in order)]
    result = ", ".join("H[%d]" % i for i in leaves)
    lines = ['local flow = require "flow"', "local T = {}"] + defs + \
        ['return flow.pipeline("wf", {}, function()', "  local H = {}"] + calls + ["  return { %s }" % result, "end)"]
    return "\n".join(lines) + "\n", edges


class Run:
    def __init__(self, flow, folder):
        self.flow, self.folder = flow, folder
        self.env = dict(os.environ, FLOW_STATE=os.path.join(folder, "state"))

    def start(self, *args):
        return subprocess.Popen([self.flow, *args], cwd=self.folder, env=self.env, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def call(self, *args):
        done = subprocess.run([self.flow, *args], cwd=self.folder, env=self.env, capture_output=True, text=True,
                              timeout=300)
        return done.returncode, done.stdout, done.stderr


def read_log(path):
    return [line.split() for line in open(path)] if os.path.exists(path) else []


def result_of(run):
    code, out, err = run.call("show", "last", "--json")
    if code != 0:
        raise SystemExit("show failed: " + err)
    return json.loads(out)


def prepare(flow, workflow, seconds, folder):
    os.makedirs(folder)
    log = os.path.join(folder, "effects.log")
    text, edges = convert(workflow, seconds, log)
    with open(os.path.join(folder, "pipeline.lua"), "w") as out:
        out.write(text)
    return Run(flow, folder), log, edges


def check(flow, path, seed, kills, seconds):
    workflow = json.load(open(path))
    rng = random.Random(seed)
    base = tempfile.mkdtemp(prefix="flow-wf-")
    problems = []
    try:
        calm, calm_log, edges = prepare(flow, workflow, 0, os.path.join(base, "calm"))
        code, out, err = calm.call("run", "pipeline.lua", "--quiet")
        if code != 0:
            return ["undisturbed run: exit %d: %s" % (code, err[-2000:])]
        expected = result_of(calm)["result"]
        code, out, err = calm.call("graph", "pipeline.lua", "--format", "json")
        graph = {n["name"]: set(n.get("needs", [])) | set(n.get("after", [])) for n in json.loads(out)["nodes"]}
        for name, parents in edges.items():
            if graph.get(name) != parents:
                problems.append("edges of %s: engine %s, declared %s" % (name, sorted(graph.get(name, [])), sorted(parents)))

        run, log, _ = prepare(flow, workflow, seconds, os.path.join(base, "killed"))
        process = run.start("run", "pipeline.lua", "--quiet", "--jobs", "4")
        committed_before = {}
        for _ in range(kills):
            time.sleep(rng.uniform(0.05, max(0.2, seconds / 8)))
            if process.poll() is not None:
                break
            process.send_signal(signal.SIGKILL)
            process.communicate()
            code, out, err = run.call("show", "last", "--json")
            if code == 0:
                committed = {t["name"] for t in json.loads(out)["tasks"] if t["status"] == "succeeded"}
                time.sleep(0.3)  # executors of the dead engine still write
                starts = [w[1] for w in read_log(log) if w[0] == "start"]
                for name in committed:
                    count = starts.count(name)
                    if committed_before.setdefault(name, count) != count:
                        problems.append("%s was committed and started again" % name)
                verb = ("resume", "last")
            else:
                verb = ("run", "pipeline.lua")  # killed before the run was recorded
            process = run.start(*verb, "--quiet", *(("--jobs", "4")))
        out, err = process.communicate(timeout=600)
        if process.returncode != 0:
            problems.append("last resume: exit %d: %s" % (process.returncode, err[-2000:]))
            return problems
        final = result_of(run)
        if final["result"] != expected:
            problems.append("the result differs from the undisturbed run's")
        lines = read_log(log)
        starts = [w[1] for w in lines if w[0] == "start"]
        for name, count in committed_before.items():
            if starts.count(name) != count:
                problems.append("%s was committed and started again" % name)
        ended = set()
        for kind, name in lines:
            if kind == "end":
                ended.add(name)
            elif not edges[name] <= ended:
                problems.append("%s started before %s ended" % (name, sorted(edges[name] - ended)))
        for name in edges:
            if name not in ended:
                problems.append("%s has no effect" % name)
        if problems:
            problems.append("folder kept: none; seed %d" % seed)
        print("%s: %d tasks, %d edges, %d starts after kills" %
              (os.path.basename(path), len(edges), sum(map(len, edges.values())), len(starts)))
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow", required=True)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="sum of all run times after scaling")
    parser.add_argument("files", nargs="*", help="default: every .json of the folder $FLOW_WFFORMAT")
    args = parser.parse_args()
    folder = os.environ.get("FLOW_WFFORMAT", "")
    files = args.files or sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".json")) if args.files or os.path.isdir(folder) else []
    if not files:
        print("skipped: FLOW_WFFORMAT names no folder of workflows")
        sys.exit(77)
    failed = 0
    for path in files:
        for problem in check(os.path.abspath(args.flow), path, args.seed, args.kills, args.seconds):
            failed += 1
            print("%s (seed %d): %s" % (os.path.basename(path), args.seed, problem), file=sys.stderr)
    print("%d passed, %d failed" % (len(files) - (1 if failed else 0), failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
