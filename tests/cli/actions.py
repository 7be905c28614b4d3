#!/usr/bin/env python3
"""Who asked for a cancel, stop, retry, resume, signal, serve, deploy or rollback: what the journal keeps, and where it is shown.

usage: actions.py --flow BIN [TEST...]
"""
import json
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

# The service answers with the number `by`.
SERVES = r'''
local flow = require "flow"
local number = flow.service("number", { port = 0 }, function(ctx, by) return { predict = function() return { y = by } end } end)
return flow.pipeline("serves", { by = flow.param.int { default = 1 } }, function(p) return number(p.by) end)
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

    def serve_two_versions(self, *options):
        """Serves two versions of `prod`; returns the ids of their runs."""
        self.write("serves.lua", SERVES)
        return [self.detached("run", "serves.lua", "--name", "prod", "--param", "by=%d" % by, *options)["run"] for by in (1, 2)]

    def actions_of_services(self, by, *options):
        """Asks for each action on a name that is served, as `by`."""
        first, second = self.serve_two_versions(*options)
        self.addCleanup(self.flow, "stop", "prod", *options)
        self.assertEqual((self.actions(first), self.actions(second)), ([], []))
        back = self.detached("rollback", "prod", *options)["run"]
        self.assertEqual(self.actions(back), [("rollback", None, by)])
        deployed = self.detached("deploy", second, "--name", "prod", *options)["run"]
        self.assertEqual(self.actions(deployed), [("serve", None, by)])
        self.good("stop", "prod", *options)
        self.assertEqual(self.actions(deployed), [("serve", None, by), ("stop", None, by)])
        again = self.detached("serve", "prod", *options)["run"]
        self.assertEqual(self.actions(again), [("serve", None, by)])
        self.assertNotIn(again, (first, second, back, deployed))
        self.good("stop", again, *options)
        self.assertEqual(self.actions(again), [("serve", None, by), ("stop", None, by)])

    def test_versions_of_a_service(self):
        self.actions_of_services(ME)

    # ---- by a client of a head

    def lead(self):
        """Starts a head; returns the options of its clients."""
        head = self.start("head", "--listen", "127.0.0.1:0", "--jobs", "4", "--json")
        said = json.loads(head.stdout.readline())
        return ["--head", said["address"], "--secret-file", said["secret_file"]]

    def test_versions_of_a_service_at_a_head(self):
        self.actions_of_services(ME + " from 127.0.0.1", *self.lead())

    def test_a_client_of_a_head_has_its_address(self):
        there, by = self.lead(), ME + " from 127.0.0.1"
        run = self.wait_for_ask(*there, "--name", "asked")
        self.good("signal", "asked", "early", "1", *there)
        self.good("stop", "asked", *there)
        self.exits(3, self.end(run))
        done = [("signal", "early", by), ("stop", None, by)]
        self.assertEqual(self.actions("asked"), done)
        self.assertIn("Stopped by " + by, self.good("why", "asked").out)
        again = self.start("resume", "asked", *there)
        done.append(("resume", None, by))
        self.until("the run is resumed", lambda: self.actions("asked") == done)
        self.until_waits("ask", "asked")
        self.good("cancel", "asked", *there)
        self.exits(1, self.end(again))
        self.assertEqual(self.actions("asked"), done + [("cancel", None, by)])
        self.assertIn("Cancelled by " + by, self.good("why", "asked").out)

    def test_retries_and_an_interrupt_by_a_client_of_a_head(self):
        there, by = self.lead(), ME + " from 127.0.0.1"
        self.write("fails.lua", FAILS)
        self.exits(1, self.flow("run", "fails.lua", "--name", "fails", *there))
        self.exits(1, self.flow("retry", "fails", *there))
        self.exits(1, self.flow("retry", "fails", "breaks", *there))
        self.assertEqual(self.actions("fails"), [("retry", None, by), ("retry", "breaks", by)])
        run = self.wait_for_ask(*there, "--name", "asked")
        run.send_signal(signal.SIGINT)
        self.exits(3, self.end(run))
        self.assertEqual(self.actions("asked"), [("stop", None, by)])

    def test_who_asks_at_the_socket_of_the_state_has_no_address(self):
        self.lead()
        run = self.wait_for_ask("--name", "asked")
        self.good("cancel", "asked")
        self.exits(1, self.end(run))
        self.assertEqual(self.actions("asked"), [("cancel", None, ME)])

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
