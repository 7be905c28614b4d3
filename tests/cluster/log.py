#!/usr/bin/env python3
"""The logs of a head and its workers: each join, rejection, disconnect, rejoin, loss and retry leaves exactly one line."""
import json
import os
import signal

import cluster_place
from cluster_place import place


class Log(cluster_place.ClusterPlace):
    def logged(self, name):
        return ("--log-file", self.path(name + ".log"), "--log-format", "json")

    def lines(self, name):
        return [json.loads(line) for line in self.read(name + ".log").splitlines()] if os.path.exists(self.path(name + ".log")) else []

    def events(self, name, message, **fields):
        return [line for line in self.lines(name) if line["message"] == message and fields.items() <= line.items()]

    def until_line(self, name, message, count=1, **fields):
        self.until("%s: %s %s" % (name, message, fields), lambda: len(self.events(name, message, **fields)) >= count)
        self.assertEqual(len(self.events(name, message, **fields)), count, self.lines(name))

    def start_cluster(self, *names):
        self.head(*self.logged("head"))
        for name in names:
            self.worker(name, *self.logged(name))
            self.until_status(name, "up")

    def test_a_worker_that_is_killed_leaves_one_line_per_event(self):
        self.start_cluster("a", "b")
        client = self.run_holds(*self.logged("client"))
        run = self.runs()[-1]["run"]
        self.kill(self.workers["a"])
        self.until_status("a", "lost")
        self.open("gate")
        self.exits(0, self.end(client))
        self.head_process.terminate()
        self.exits(0, self.end(self.head_process))
        for name in "a", "b":
            self.until_line("head", "worker joined", worker=name)
        self.until_line("head", "worker disconnected", worker="a")
        self.until_line("head", "worker lost", worker="a", level="warning")
        lost = self.events("head", "attempt lost, task is retried", run=run)
        self.assertEqual(len(lost), 2, self.lines("head"))  # its two slots
        for line in lost:
            self.assertEqual((line["attempt"], line["worker"], line["level"]), (1, "a", "info"))
            self.assertRegex(line["detail"], "^lost: the worker `a`, which ran it, was lost")
        self.assertEqual(len({line["task"] for line in lost}), 2)
        for message in "head started", "head stopped", "engine started", "engine stopped", "run submitted", "run ended":
            self.until_line("head", message)
        for message in "worker started", "joined the head":
            self.until_line("a", message, worker="a")
        self.assertEqual(self.events("head", "worker lost", worker="b"), [])
        self.assertEqual(self.lines("client"), [])  # of another process: the run is the head's

    def test_a_restarted_head_finds_its_workers_again(self):
        self.start_cluster("a")
        self.kill(self.head_process)
        self.until_line("a", "disconnected from the head", worker="a", level="warning")
        self.head(*self.logged("head"))
        self.until_status("a", "up")
        self.until_line("head", "worker joined", worker="a")
        self.until_line("head", "worker rejoined", worker="a")
        self.until_line("head", "engine started", count=2)
        self.until_line("a", "joined the head", count=2)
        self.workers["a"].terminate()
        self.exits(0, self.end(self.workers["a"]))
        self.until_line("a", "worker draining")
        self.until_line("a", "worker stopped")
        self.until_line("head", "worker draining", worker="a")
        self.until_line("head", "worker left", worker="a", level="info")
        self.assertEqual(self.events("head", "worker lost"), [])

    def test_a_rejected_worker_leaves_a_line(self):
        self.start_cluster("a")
        self.write("wrong", "0" * 64 + "\n")
        os.chmod(self.path("wrong"), 0o600)
        self.worker("c", *self.logged("c"), secret=self.path("wrong"))
        self.until_line("head", "session rejected", level="warning")
        self.until_line("c", "no session with the head", worker="c", level="warning")
        other = self.start("worker", "--join", "%s:%d" % (self.address, self.port), "--secret-file", self.secret, "--name", "a",
                           "--dir", self.path("other"), *self.logged("other"))
        self.until("the worker of a name that is taken is rejected", lambda: self.events("head", "worker rejected", worker="a"))
        self.assertIn("a worker named `a` has already joined", self.events("head", "worker rejected")[0]["detail"])
        other.send_signal(signal.SIGKILL)
        self.assertEqual(len(self.events("head", "worker joined")), 1)

    def test_the_log_of_a_worker_is_outside_of_its_folder(self):
        self.head()
        done = self.flow("worker", "--join", "%s:%d" % (self.address, self.port), "--secret-file", self.secret, "--name", "a",
                         "--dir", self.path("w"), "--log-file", self.path("w", "flow.log"))
        self.exits(2, done, "is in `%s`" % self.path("w"))


if __name__ == "__main__":
    place.main()
