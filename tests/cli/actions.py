#!/usr/bin/env python3
"""Who asked for a cancel, stop, retry, resume, signal or rollback: what the journal keeps, and where it is shown.

usage: actions.py --flow BIN [TEST...]
"""
import os
import pwd
import signal
import socket
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import HOLD, Place, main  # noqa: E402

WAIT = r'''
local flow = require "flow"
local ask = flow.task("ask", function(ctx) return { ctx:wait("go"), %s } end)
return flow.pipeline("wait", {}, function(p) return ask() end)
'''

FAILS = r'''
local flow = require "flow"
local breaks = flow.task("breaks", function() error("no luck") end)
return flow.pipeline("fails", {}, function(p) return breaks() end)
'''

ME = "%s@%s" % (pwd.getpwuid(os.geteuid()).pw_name, socket.gethostname())


class Actions(Place):
    def actions(self, run="last"):
        return [(each["action"], each["name"], each["by"]) for each in self.show(run).get("actions", [])]

    def wait_for_ask(self, *options):
        self.write("ask.lua", WAIT % "1")
        run = self.start("run", "ask.lua", *options)
        self.until_waits("ask")
        return run

    def test_a_signal_outlives_its_writer_and_new_code(self):
        run = self.wait_for_ask()
        self.assertEqual(self.actions(), [])
        self.good("signal", "last", "early", "1")
        self.assertEqual(self.actions(), [("signal", "early", ME)])
        self.kill(run)
        self.assertEqual(self.actions(), [("signal", "early", ME)])
        self.good("signal", "last", "go", '"now"')
        signals = [("signal", "early", ME), ("signal", "go", ME)]
        self.write("ask.lua", WAIT % "2")
        self.good("resume", "--code", "new")
        self.assertEqual(self.show()["result"], ["now", 2])
        self.assertEqual(self.actions(), signals + [("resume", None, ME)])

    def test_a_cancelled_run_says_by_whom(self):
        run = self.wait_for_ask()
        self.good("cancel", "last")
        self.exits(1, self.end(run))
        self.assertEqual(self.actions(), [("cancel", None, ME)])
        self.assertIn("Cancelled by " + ME, self.good("why", "last").out)
        shown = self.good("show", "last").out
        self.assertRegex(shown, r"cancel +by %s at 20" % ME)

    def test_a_stop_and_a_resume(self):
        run = self.wait_for_ask()
        self.good("stop", "last")
        self.end(run)
        self.assertEqual(self.show()["status"], "interrupted")
        self.assertIn("Stopped by " + ME, self.good("why", "last").out)
        self.good("signal", "last", "go")
        self.good("resume")
        self.assertEqual(self.actions(), [("stop", None, ME), ("signal", "go", ME), ("resume", None, ME)])

    def test_retries_of_a_run_and_of_a_task(self):
        self.write("fails.lua", FAILS)
        self.exits(1, self.flow("run", "fails.lua"))
        self.exits(1, self.flow("retry", "last"))
        self.exits(1, self.flow("retry", "last", "breaks"))
        self.assertEqual(self.actions(), [("retry", None, ME), ("retry", "breaks", ME)])

    def test_an_interrupt_by_its_client_is_a_stop(self):
        run = self.wait_for_ask()
        run.send_signal(signal.SIGINT)
        self.exits(3, self.end(run))
        self.assertEqual(self.actions(), [("stop", None, ME)])

    def test_what_ends_alone_has_no_action(self):
        self.write("held.lua", HOLD + 'return flow.pipeline("held", { gate = flow.param.string {} }, '
                   'function(p) return hold(p.gate, "one").stdout end)\n')
        run = self.start("run", "held.lua", "--param", "gate=" + self.path("gate"))
        self.until_holds("one")
        self.open("gate")
        self.exits(0, self.end(run))
        self.assertNotIn("actions", self.show())


if __name__ == "__main__":
    main()
