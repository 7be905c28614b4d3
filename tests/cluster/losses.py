#!/usr/bin/env python3
"""How soon a worker is lost: a killed one within a second, a silent one within ten seconds or the
configured time. The limits have a margin for a busy machine."""
import os
import signal
import time

import cluster_place
from cluster_place import place

SOON = ("--lost-after", "3s")


def stop(process):
    process.send_signal(signal.SIGSTOP)


def end(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # the end of its run ended it
        pass


class Losses(cluster_place.ClusterPlace):
    def test_a_worker_that_is_killed_is_lost_within_a_second(self):
        self.assertLess(self.lost_after(self.kill), 3)

    def test_a_worker_that_is_stopped_is_lost_within_ten_seconds(self):
        self.assertLess(self.lost_after(stop), 15)

    def test_a_worker_that_is_stopped_is_lost_after_the_time_given_to_the_head(self):
        self.assertLess(self.lost_after(stop, *SOON), 8)

    def test_workers_that_a_run_starts_are_lost_after_the_time_given_to_it(self):
        client = self.run_holds("--workers", "2", "--jobs", "4", *SOON)
        with open(self.path(".flow", "workers", "local-1", "lock")) as lock:
            worker = int(lock.read().split()[1])
        began = time.time()
        os.kill(worker, signal.SIGSTOP)
        self.addCleanup(end, worker)
        self.until_status("local-1", "lost")
        self.open("gate")
        self.assertLess(self.lost_at(client, "local-1") - began, 8)

    def test_a_worker_disconnects_from_its_head_after_the_same_silence(self):
        self.cluster(["a"], head=SOON)
        began = time.monotonic()
        stop(self.head_process)
        while "its process is stopped" not in (line := self.workers["a"].stdout.readline()):
            self.assertTrue(line, "the worker has ended")
        self.assertLess(time.monotonic() - began, 8)
        self.assertIn("nothing was received from node", line)
        self.head_process.send_signal(signal.SIGCONT)
        self.until_status("a", "up")

    def test_the_silence_timeout_is_bounded(self):
        self.write("holds.lua", cluster_place.HOLDS)
        for time_text in "1999ms", "0", "1441m":
            self.exits(2, self.flow("head", "--listen", "127.0.0.1:0", "--lost-after", time_text), "--lost-after is from 2.0s to 1d 0h",
                       "`%s`" % time_text)
        for time_text in "2s", "24h":
            self.head("--lost-after", time_text).terminate()
            self.exits(0, self.end(self.head_process))
        run = ("run", "holds.lua", "--param", "gate=gate")
        self.exits(2, self.flow(*run, "--workers", "2", "--lost-after", "1s"), "--lost-after is from 2.0s")
        self.exits(2, self.flow(*run, *SOON), "--workers N", "flow head --lost-after")


if __name__ == "__main__":
    place.main()
