#!/usr/bin/env python3
"""A run takes over the services of the run that serves its name: no request fails, the listener stays open, and a
version that is not well is rolled back.

usage: rollover.py --flow BIN [TEST...]
"""
import contextlib
import http.client
import json
import os
import signal
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import HOLD, Place, main, unused_port  # noqa: E402

SCRIPT = r'''
local flow = require "flow"
local calls = 0
BEFORE
local scale = flow.service("scale", { OPTIONS }, function(ctx)
  START
  return { predict = function(inputs)
    calls = calls + 1
    if FAILS and calls % 2 == 0 then error("every second call fails") end
    return { y = inputs.x * FACTOR }
  end }
end)
return flow.pipeline("versions", {}, function() return scale() end)
'''
HOLDER = HOLD + r'''
return flow.pipeline("holder", { gate = flow.param.string {} }, function(p) return hold(p.gate, "one").stdout end)
'''
PATH = "/v2/models/scale/infer"
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}).encode()
CLIENTS = 3


def infer(connection):
    """The status and the factor of the version that answers, or None."""
    connection.request("POST", PATH, BODY)
    answer = connection.getresponse()
    text = answer.read()
    return answer.status, json.loads(text)["outputs"][0]["data"][0] if answer.status == 200 else None


class LoopingClient(threading.Thread):
    """Sends requests until it is told to end. `failures` has what was not answered with status 200."""

    def __init__(self, port):
        super().__init__()
        self.port, self.is_over, self.failures, self.factors = port, False, [], []

    def run(self):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            while not self.is_over:
                try:
                    status, factor = infer(connection)
                except (OSError, http.client.HTTPException) as error:
                    self.failures.append(repr(error))
                    return
                if status == 200:
                    self.factors.append(factor)
                else:
                    self.failures.append(status)


def listening_inodes(port):
    """Of the sockets that listen at this port."""
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return {row[9] for row in rows if int(row[1].split(":")[1], 16) == port and row[3] == "0A"}


class RolloverPlace(Place):
    """Versions of the service `scale` of the name `prod`, and clients that call it."""

    def setUp(self):
        super().setUp()
        self.clients = []
        self.write("holder.lua", HOLDER)

    def clean(self):
        for client in self.clients:
            client.is_over = True
        super().clean()

    def hold_engine(self, *words, **env):
        """The engine of all runs: a process whose own run goes on until `gate` exists."""
        engine = self.start("run", "holder.lua", "--param", "gate=" + self.path("gate"), "--jobs", "4",
                            "--log-level", "info", "--log-file", self.path("log"), *words, **env)
        self.until_holds("one")
        return engine

    def deploy(self, factor, options="port = 0", fails=False, words=(), before="", start=""):
        script = "v%d.lua" % factor
        text = SCRIPT.replace("OPTIONS", options).replace("FACTOR", str(factor)).replace("BEFORE", before)
        text = text.replace("START", start)
        self.write(script, text.replace("FAILS", "true" if fails else "false"))
        return self.start("run", script, "--name", "prod", *words)

    def versions(self):
        """The runs of the name, oldest first."""
        return sorted((run for run in self.runs() if run["name"] == "prod"), key=lambda run: run["run"])

    def until_status(self, number, status):
        def has_it():
            runs = self.versions()
            return len(runs) > number and runs[number]["status"] == status
        self.until("version %d is %s" % (number, status), has_it)
        return self.show(self.versions()[number]["run"])

    def logs(self, *texts):
        """Lines of the engine's log with these texts come in this order."""
        lines = iter(self.read("log").splitlines())
        for text in texts:
            self.assertTrue(any(text in line for line in lines), "not in the log, or earlier: " + text)

    def rollover(self, number):
        return self.show(self.versions()[number]["run"]).get("rollover", {})

    def load(self, url):
        port = int(url.rsplit(":", 1)[1])
        self.clients = [LoopingClient(port) for _ in range(CLIENTS)]
        for client in self.clients:
            client.start()
        self.until("all clients have answers", lambda: all(len(client.factors) >= 20 for client in self.clients))
        return port

    def unload(self):
        for client in self.clients:
            client.is_over = True
            client.join()

    def until_answers(self, factor, port):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            self.until("version %d answers all" % factor,
                       lambda: [infer(connection) for _ in range(20)] == [(200, factor)] * 20)

    def kill_services(self):
        """As the death of the machine: neither fronts nor replicas outlive the engine."""
        for pid in self.serving():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def until_one_serves(self, others="succeeded"):
        """Returns its number."""
        self.until("one version serves",
                   lambda: sorted(run["status"] for run in self.versions()) == sorted(["serving", others]))
        return 0 if self.versions()[0]["status"] == "serving" else 1


class Rollover(RolloverPlace):
    def test_no_request_fails_and_the_listener_stays_open(self):
        self.hold_engine()
        first = self.deploy(1)
        port = self.load(self.until_status(0, "serving")["url"])
        before = listening_inodes(port)
        self.assertEqual(len(before), 1)
        second = self.deploy(2)
        shown = self.until_status(1, "serving")
        self.assertEqual(shown["rollover"]["phase"], "done")
        self.assertEqual(shown["rollover"]["previous"], self.versions()[0]["run"])
        self.assertEqual(shown["rollover"]["percent"], 100)
        self.exits(0, self.end(first))
        self.assertEqual(self.versions()[0]["status"], "succeeded")
        self.until("the new version answers", lambda: all(client.factors[-1] == 2 for client in self.clients))
        self.assertEqual(listening_inodes(port), before)
        self.logs("rollover step", "rollover done")
        self.unload()
        self.assertEqual([client.failures for client in self.clients], [[]] * CLIENTS)
        second.send_signal(signal.SIGINT)
        self.exits(0, self.end(second))
        self.open("gate")

    def roll_over_a_long_call(self, idempotent):
        """What a client gets whose call of predict outlasts the grace of the version before: status, fields, body."""
        self.hold_engine()
        stuck = "if true then return { predict = function() while true do end end } end"
        first = self.deploy(1, "port = 0, idempotent = %s" % idempotent, words=("--grace", "1s"), start=stuck)
        port = int(self.until_status(0, "serving")["url"].rsplit(":", 1)[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.addCleanup(connection.close)
        connection.request("POST", PATH, BODY)
        self.until("predict runs", lambda: [each["status"] for each in self.flow("services", "--json").lines()[0]["replicas"]] == ["busy"])
        self.deploy(2)
        answer = connection.getresponse()
        text = answer.read().decode()
        self.exits(0, self.end(first))
        self.assertEqual(self.versions()[0]["status"], "succeeded")
        self.open("gate")
        return answer, text

    def test_a_call_that_outlasts_the_grace_runs_again_in_the_new_version(self):
        answer, text = self.roll_over_a_long_call("true")
        self.assertEqual((answer.status, json.loads(text)["outputs"][0]["data"]), (200, [2]))

    def test_a_call_that_outlasts_the_grace_and_may_not_run_again_is_answered(self):
        answer, text = self.roll_over_a_long_call("false")
        self.assertEqual((answer.status, answer.headers["Retry-After"] is not None), (503, True), text)
        self.assertIn("stopped at the end of the `--grace`", text)

    def test_a_version_that_fails_is_rolled_back(self):
        self.hold_engine()
        self.deploy(1)
        port = self.load(self.until_status(0, "serving")["url"])
        before = listening_inodes(port)
        bad = self.deploy(2, 'port = 0, canary = { 20, 100, every = "1s", max_error_rate = 0.01, min_requests = 5 }',
                          fails=True)
        failed = self.end(bad)
        self.exits(1, failed, "the canary at 20% failed: ", "max_error_rate is 0.01; the version before, ",
                   "has all traffic again")
        self.assertIn("the canary at 20% failed: ", self.good("why", self.versions()[1]["run"]).out)
        shown = self.show(self.versions()[1]["run"])["rollover"]
        self.assertEqual((shown["phase"], shown["percent"]), ("reverted", 0))
        self.assertIn("has all traffic again", shown["reason"])
        self.assertEqual(self.versions()[0]["status"], "serving")
        self.logs('detail="20% of the traffic"', "rollover measured", "rolled back", "run ended")
        self.until_answers(1, port)
        self.assertEqual(listening_inodes(port), before)
        self.unload()
        # The name means the version that serves, not the newest run, which has failed.
        self.start("serve", "prod")
        self.until_status(2, "serving")
        self.until_answers(1, port)
        self.good("cancel", "prod")
        self.until_status(2, "cancelled")
        self.assertEqual([run["status"] for run in self.versions()], ["succeeded", "failed", "cancelled"])
        self.start("deploy", "prod", "--name", "prod")
        self.until_status(3, "serving")
        for client in self.clients:
            self.assertEqual(set(client.failures) - {500}, set())
            share = len(client.failures) / (len(client.failures) + len(client.factors))
            self.assertLess(share, 0.5)
        self.open("gate")

    def test_a_version_that_is_stopped_in_its_canary_has_not_taken_over(self):
        self.hold_engine()
        self.deploy(1)
        port = self.load(self.until_status(0, "serving")["url"])
        first = self.versions()[0]["run"]
        said = ("the run ended before it had taken over the traffic of its name from the version before, " + first)
        for number, words, end in ((1, ("--detach",), "stop"), (2, (), "stop"), (3, (), "interrupt")):
            version = self.deploy(number + 1, 'port = 0, canary = { 50, every = "600s" }', words=words)
            self.until("the step is observed", lambda: len(self.versions()) > number
                       and self.rollover(number).get("phase") == "observing")
            run = self.versions()[number]["run"]
            if end == "stop":
                self.good("stop", run)
            else:
                version.send_signal(signal.SIGINT)
            self.exits(1, self.end(version), "`prod` is not served by the run %s: %s." % (run, said))
            shown = self.show(run)
            self.assertEqual((shown["status"], shown["rollover"]),
                             ("succeeded", {"phase": "stopped", "previous": first, "step": 1, "steps": 2, "percent": 0,
                                            "reason": said}))
            self.assertIn("stopped, after " + first, self.good("show", run).out)
            self.until_answers(1, port)
        self.unload()
        self.assertEqual([client.failures for client in self.clients], [[]] * CLIENTS)
        self.open("gate")

    def test_a_rollback_in_a_canary_ends_it_and_one_without_returns_to_the_version_before(self):
        self.hold_engine()
        self.deploy(1)
        self.until_status(0, "serving")
        self.deploy(2)
        port = self.load(self.until_status(1, "serving")["url"])
        approved = self.versions()[1]["run"]
        for number, words in enumerate(((), ("--detach",), ("--detach", "--json")), 2):
            version = self.deploy(number + 1, 'port = 0, canary = { 50, every = "600s" }')
            self.until("the step is observed", lambda: len(self.versions()) > number
                       and self.rollover(number).get("phase") == "observing")
            done = self.good("rollback", "prod", *words)
            if "--json" in words:
                self.assertEqual([line["run"] for line in done.lines()], [approved])
            else:
                self.assertEqual(done.out, "the canary has ended: `prod` is served by the run %s, as before\n" % approved)
            self.exits(1, self.end(version), "the canary at 50% failed: `flow rollback prod`",
                       "ended it; the version before, %s, has all traffic again" % approved)
            self.assertEqual(self.show(self.versions()[number]["run"])["rollover"]["phase"], "reverted")
            self.until_answers(2, port)
        self.assertEqual([run["status"] for run in self.versions()], ["succeeded", "serving"] + ["failed"] * 3)
        self.start("rollback", "prod")
        self.until_status(5, "serving")
        self.until_answers(1, port)
        self.unload()
        self.assertEqual([client.failures for client in self.clients], [[]] * CLIENTS)
        self.open("gate")

    def test_a_rollover_is_shown_and_a_third_version_waits_for_it(self):
        self.hold_engine()
        self.deploy(1)
        port = self.load(self.until_status(0, "serving")["url"])
        self.deploy(2, 'port = 0, canary = { 20, 100, every = "600s" }')
        self.until("the step is observed",
                   lambda: len(self.versions()) == 2 and self.rollover(1).get("phase") == "observing")
        first, second = [run["run"] for run in self.versions()]
        self.assertEqual(self.rollover(1), {"phase": "observing", "previous": first, "step": 1, "steps": 2,
                                            "percent": 20, "reason": None})
        self.assertEqual(self.versions()[1]["status"], "running")
        self.assertIn("observing, step 1 of 2, 20% of the traffic, after " + first, self.good("show", second).out)
        for words in ([second], [second, "scale"]):
            self.assertIn("step 1 of 2, 20% of the traffic", self.good("why", *words).out)
        self.until("both versions answer", lambda: {f for c in self.clients for f in c.factors} == {1, 2})
        self.deploy(3)
        self.until("the third version waits",
                   lambda: len(self.versions()) == 3 and self.rollover(2).get("phase") == "waiting")
        self.good("cancel", second)
        self.until_status(2, "serving")
        self.assertEqual(self.rollover(2)["previous"], first)
        self.assertEqual([run["status"] for run in self.versions()], ["succeeded", "cancelled", "serving"])
        self.until_answers(3, port)
        self.unload()
        self.assertEqual([client.failures for client in self.clients], [[]] * CLIENTS)
        self.open("gate")

    def test_a_version_that_replaces_starts_when_the_one_before_has_ended(self):
        self.hold_engine()
        port = unused_port()
        options = 'port = %d, rollover = "replace"' % port
        first = self.deploy(1, options)
        self.until_status(0, "serving")
        self.deploy(2, options)
        self.exits(0, self.end(first))
        self.until_status(1, "serving")
        self.until_answers(2, port)
        self.assertEqual(self.versions()[0]["status"], "succeeded")
        self.logs("service ready", "rollover stops the version before first", "run ended", "service ready")
        self.open("gate")

    def test_another_listener_is_refused(self):
        self.hold_engine()
        port, other = unused_port(), unused_port()
        self.deploy(1, "port = %d" % port)
        self.until_status(0, "serving")
        refused = self.end(self.deploy(2, "port = %d" % other))
        self.exits(2, refused, "`scale` of `prod` is served at 127.0.0.1:%d by the run " % port,
                   "the new version listens at 127.0.0.1:%d" % other)
        self.assertEqual(self.versions()[0]["status"], "serving")
        self.open("gate")

    def test_a_version_without_room_beside_the_one_that_serves_is_refused(self):
        self.hold_engine("--resource", "seat=1")
        self.deploy(1, "port = 0, resources = { seat = 1 }")
        self.load(self.until_status(0, "serving")["url"])
        refused = self.end(self.deploy(2, "port = 0, resources = { seat = 1 }"))
        first = self.versions()[0]["run"]
        self.exits(1, refused, "`scale` has no room beside the version before, %s, whose" % first,
                   'write `rollover = "replace"` in the options')
        self.assertEqual(self.versions()[0]["status"], "serving")
        self.unload()
        self.assertEqual([client.failures for client in self.clients], [[]] * CLIENTS)
        self.deploy(3, 'port = 0, resources = { seat = 1 }, rollover = "replace"')
        self.until_status(2, "serving")
        self.open("gate")

    def test_a_version_that_dies_at_its_start_after_a_resume_gives_way(self):
        engine = self.hold_engine()
        crash = 'if flow.fs.exists("%s") then error("it is broken") end' % self.path("crash")
        first = self.deploy(1, start=crash)
        self.until_status(0, "serving")
        (service,) = self.good("services", "--json").lines()
        os.kill(service["replicas"][0]["pid"], signal.SIGKILL)
        run = self.versions()[0]["run"]
        self.until("it was restarted", lambda: self.tasks(run)["scale"].get("restarts") == 1)
        self.until_status(0, "serving")
        first.send_signal(signal.SIGSTOP)  # it would take the run over
        self.kill(engine)
        self.kill_services()
        self.kill(first)
        self.open("crash")
        self.start("resume", run)
        self.until("it dies", lambda: self.tasks(run)["scale"].get("restarts", 0) >= 2)
        self.deploy(2)
        self.until_status(1, "serving")
        self.until_status(0, "succeeded")

    def kill_in_rollover(self, failpoint):
        engine = self.hold_engine(FLOW_FAILPOINT=failpoint)
        canary = 'port = 0, canary = { 20, 100, every = "1s", min_requests = 5 }'
        self.deploy(1, canary)
        port = self.load(self.until_status(0, "serving")["url"])
        before = listening_inodes(port)
        self.deploy(2, canary)
        self.assertEqual(self.end(engine).code, -signal.SIGKILL)
        # The processes of both runs resume them.
        self.until_answers(self.until_one_serves() + 1, port)
        self.assertEqual(listening_inodes(port), before)
        self.unload()
        self.assertEqual([client.failures for client in self.clients], [[]] * CLIENTS)

    def test_an_engine_that_is_killed_before_the_first_step_leaves_one_version(self):
        self.kill_in_rollover("traffic-before-shift:2")

    def test_an_engine_that_is_killed_after_the_first_step_leaves_one_version(self):
        self.kill_in_rollover("traffic-after-shift:2")

    def test_an_engine_that_is_killed_before_the_last_step_leaves_one_version(self):
        self.kill_in_rollover("traffic-before-shift:3")

    def test_an_engine_that_is_killed_after_the_last_step_leaves_one_version(self):
        self.kill_in_rollover("traffic-after-shift:3")

    def test_an_engine_that_is_killed_before_a_step_is_measured_leaves_one_version(self):
        self.kill_in_rollover("traffic-before-measure:1")

    def test_an_engine_that_is_killed_after_a_step_was_measured_leaves_one_version(self):
        self.kill_in_rollover("traffic-after-measure:1")

    def test_an_engine_that_is_killed_before_the_version_before_is_stopped_leaves_one_version(self):
        self.kill_in_rollover("attempt-before-stop")

    def kill_in_return(self, failpoint):
        engine = self.hold_engine(FLOW_FAILPOINT=failpoint)
        self.deploy(1)
        port = self.load(self.until_status(0, "serving")["url"])
        before = listening_inodes(port)
        self.deploy(2, 'port = 0, canary = { 20, 100, every = "1s", max_error_rate = 0.01, min_requests = 5 }',
                    fails=True)
        self.assertEqual(self.end(engine).code, -signal.SIGKILL)
        self.assertEqual(self.until_one_serves("failed"), 0)
        self.until_answers(1, port)
        self.assertEqual(listening_inodes(port), before)
        self.unload()
        self.assertEqual({failure for client in self.clients for failure in client.failures} - {500}, set())

    def test_an_engine_that_is_killed_before_the_traffic_goes_back_leaves_the_version_before(self):
        self.kill_in_return("traffic-before-shift:3")

    def test_an_engine_that_is_killed_after_the_traffic_went_back_leaves_the_version_before(self):
        self.kill_in_return("traffic-after-shift:3")


if __name__ == "__main__":
    main()
