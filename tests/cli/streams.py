#!/usr/bin/env python3
"""Standard streams that are closed, full or without a reader: `flow` reports that, and nothing else changes.

usage: streams.py --flow BIN [TEST...]
"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import HOLD, OPTIONS, WAIT_SECONDS_MAX, Done, Place, main  # noqa: E402

SCRIPT = HOLD + r'''
return flow.pipeline("streams", {}, function() return hold("gate", "go").stdout end)
'''


class Streams(Place):
    def setUp(self):
        super().setUp()
        self.write("pipeline.lua", SCRIPT.replace('"gate"', '"%s"' % self.path("gate")))

    def shell(self, line):
        """Runs `flow` in a shell command; returns the exit code of its first command."""
        done = subprocess.run(["bash", "-c", line + "; exit ${PIPESTATUS[0]}"], cwd=self.folder, capture_output=True,
                              env=dict(self.env, flow=OPTIONS.flow), text=True, timeout=WAIT_SECONDS_MAX)
        return Done(done.returncode, done.stdout, done.stderr)

    def is_holders_line(self, text):
        self.assertRegex(text, r"\Aprocess \d+ on .*\nboot .* start \d+\n\Z")

    def test_a_run_with_closed_streams_ends_well_and_its_lock_is_not_written_to(self):
        run = subprocess.Popen(["bash", "-c", 'exec "$flow" run . <&- >&- 2>&-'], cwd=self.folder,
                               env=dict(self.env, flow=OPTIONS.flow))
        self.processes.append(run)
        self.until_holds("go")
        self.is_holders_line(self.read(".flow/lock"))
        self.open("gate")
        run.wait(timeout=WAIT_SECONDS_MAX)
        self.assertEqual(run.returncode, 4)  # its output was lost
        self.assertEqual(self.show()["status"], "succeeded")

    def test_a_retry_with_closed_streams_writes_nothing_into_the_lock(self):
        self.open("gate")
        self.good("run", ".")
        self.shell('"$flow" retry last hold <&- >&- 2>&-')
        self.is_holders_line(self.read(".flow/lock"))
        self.assertEqual(self.show()["status"], "succeeded")
        self.assertEqual(self.tasks()["hold"]["attempts"], 2)

    def test_each_stream_alone_may_be_closed(self):
        self.open("gate")
        for closed in ("<&-", "2>&-"):
            with self.subTest(closed):
                self.exits(0, self.shell('"$flow" run . --fresh %s' % closed), "succeeded: 1 task")
                self.is_holders_line(self.read(".flow/lock"))

    def test_output_that_cannot_be_written_is_an_error_with_its_reason(self):
        self.open("gate")
        self.good("run", ".")
        for where, reason in ((">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")):
            for words in ("run .", "run . --json", "run . --fresh", "resume", "show", "ls", "--help"):
                with self.subTest(words + where):
                    done = self.exits(4, self.shell('"$flow" %s %s' % (words, where)))
                    self.assertEqual(done.err, "error: cannot write to the standard output: %s\n" % reason)

    def test_a_closed_pipe_is_not_an_error(self):
        self.open("gate")
        for words in ("run .", "run . --json", "run . --fresh", "ls", "show"):
            with self.subTest(words):
                done = self.exits(0, self.shell('"$flow" %s | true' % words))
                self.assertEqual((done.out, done.err), ("", ""))


if __name__ == "__main__":
    main()
