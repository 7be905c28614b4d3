"""A folder with a script, a state, and the `flow` processes started in it; all are removed at its
end."""
import argparse
import fcntl
import glob
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

WAIT_SECONDS_MAX = 120
OPTIONS = argparse.Namespace(flow="flow", newer="state_newer")

# `hold(path, label)` prints that it started and ends once `path` exists.
HOLD = r'''
local flow = require "flow"
local hold = flow.shell("hold", { args = { "path", "label" },
  command = [[echo {label} >> {path}.started; while [ ! -e {path} ]; do sleep 0.05; done; echo {label}]] })
'''
# The service answers x times the number that `factor` computes.
SCALED = r'''
local flow = require "flow"
local factor = flow.task("factor", function(ctx, n) return n end)
local scale = flow.service("scale", { port = 0 }, function(ctx, by)
  return { predict = function(inputs) return { y = inputs.x * by } end }
end)
return flow.pipeline("scaled", { by = flow.param.int { default = 2 } }, function(p) return scale(factor(p.by)) end)
'''


def unused_port(host="127.0.0.1"):
    """A port below the range that the system assigns to connections: a process can listen there
    again later."""
    while True:
        port = random.randrange(10000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
                return port
            except OSError:
                continue


class Done:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __str__(self):
        return "exit %d\nstdout: %s\nstderr: %s" % (self.code, self.out[-2000:], self.err[-2000:])

    def lines(self):
        return [json.loads(line) for line in self.out.splitlines()]


class Place(unittest.TestCase):
    longMessage = True

    def setUp(self):
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="flow-state-"))
        self.state = os.path.join(self.folder, ".flow")
        self.processes = []
        self.env = dict(os.environ, TMPDIR=os.path.join(self.folder, "tmp"), TERM="dumb")
        os.mkdir(self.env["TMPDIR"])
        # Neither the user's configuration nor variables that choose one.
        self.env["XDG_CONFIG_HOME"] = self.path("home")
        for name in ("FLOW_STATE", "FLOW_CONFIG", "FLOW_PROFILE", "FLOW_HEAD", "FLOW_JOBS"):
            self.env.pop(name, None)
        self.addCleanup(self.clean)

    def clean(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for pid in self.serving():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.open("gate", "any")  # ends the remaining shells
        shutil.rmtree(self.folder, ignore_errors=True)

    def detached(self, *words, **env):
        """The object that a command with --detach prints."""
        (left,) = self.good(*words, "--detach", "--json", **env).lines()
        return left

    def is_free(self):
        """Whether no process writes the state."""
        with open(os.path.join(self.state, "lock")) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            return True

    def serving(self):
        """The processes of services, which outlive a killed flow."""
        records = glob.glob(os.path.join(self.state, "scratch", "slots", "*.replica"))
        pids = [int(os.path.basename(record).split(".")[0]) for record in records]
        for path in glob.glob(os.path.join(self.state, "fronts", "*", "front.pid")):
            pids.append(int(self.read(path)))
        return pids

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, name, text):
        with open(self.path(name), "w") as out:
            out.write(text)

    def open(self, *names):
        for name in names:
            self.write(name, "")

    def read(self, name):
        with open(self.path(name)) as file:
            return file.read()

    def start(self, *words, before=(), **env):
        process = subprocess.Popen([*before, OPTIONS.flow, *words], cwd=self.folder, env=dict(self.env, **env),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, errors="replace")
        self.processes.append(process)
        return process

    def end(self, process):
        out, err = process.communicate(timeout=WAIT_SECONDS_MAX)
        return Done(process.returncode, out, err)

    def flow(self, *words, **env):
        return self.end(self.start(*words, **env))

    def good(self, *words, **env):
        return self.exits(0, self.flow(*words, **env))

    def exits(self, code, done, *words):
        self.assertEqual(done.code, code, done)
        for word in words:
            self.assertIn(word, done.out + done.err, done)
        return done

    def show(self, run="last"):
        return json.loads(self.good("show", run, "--json").out)

    def tasks(self, run="last"):
        return {task["name"]: task for task in self.show(run)["tasks"]}

    def runs(self):
        done = self.flow("ls", "--json")
        if done.code == 2 and "there is no state in" in done.err:  # the first process has not made it yet
            return []
        return self.exits(0, done).lines()

    def until(self, what, holds):
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not holds():
            self.assertLess(time.monotonic(), deadline, "never: " + what)
            time.sleep(0.05)

    def until_holds(self, label, gate="gate"):
        started = self.path(gate + ".started")
        self.until(label + " runs", lambda: os.path.exists(started) and label in self.read(started).split())

    def until_waits(self, task, run="last"):
        def waits():
            done = self.flow("show", run, "--json")
            tasks = json.loads(done.out)["tasks"] if done.code == 0 else []
            return any(t["name"] == task and t["status"] == "waiting" for t in tasks)
        self.until(task + " waits", waits)

    def kill(self, process):
        process.send_signal(signal.SIGKILL)
        return self.end(process)


def main(*programs):
    """`programs` are options that name further programs, which the tests find in OPTIONS: `--clients`."""
    parser = argparse.ArgumentParser()
    for option in ("--flow", *programs):
        parser.add_argument(option, required=True)
    parser.add_argument("--newer", default=OPTIONS.newer)
    parser.add_argument("only", nargs="*")
    parser.parse_args(namespace=OPTIONS)
    for option in ("--flow", *programs):
        name = option.strip("-").replace("-", "_")
        setattr(OPTIONS, name, os.path.abspath(getattr(OPTIONS, name)))
    OPTIONS.newer = os.path.abspath(OPTIONS.newer)
    unittest.main(module="__main__", argv=[sys.argv[0], *OPTIONS.only], verbosity=2)
