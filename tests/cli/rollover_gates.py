#!/usr/bin/env python3
"""A task decides about each step of a canary: it is called with what was measured, and what it returns counts.

usage: rollover_gates.py --flow BIN [TEST...]
"""
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import rollover  # noqa: E402
from rollover import CLIENTS, listening_inodes  # noqa: E402

CHECK = r'''
local check = flow.task("check", { TASK }, function(ctx, step)
  local line = ("%s %d %d %d"):format(step.version, step.step, step.requests, step.errors)
  assert(math.type(step.p50) == "float" and step.p99 >= step.p50, "latencies")
  flow.fs.append("FOLDER/gates", line .. "\n")
  ctx:log("asked about step %d", step.step)
  while not flow.fs.exists("FOLDER/open") do end
  DECIDE
end)
'''
CANARY = 'port = 0, canary = { 20, 100, every = "1s", min_requests = 5, gate = check }'


class Gates(rollover.RolloverPlace):
    def deploy_gated(self, factor, decide="return step.errors == 0", task="", **options):
        text = CHECK.replace("FOLDER", self.folder).replace("DECIDE", decide).replace("TASK", task)
        return self.deploy(factor, CANARY, before=text, **options)

    def gates(self):
        """The words of each call: version, step, requests and errors."""
        path = self.path("gates")
        return [line.split() for line in self.read("gates").splitlines()] if os.path.exists(path) else []

    def begin(self, **env):
        """The first version serves, under load. Returns the engine and the port."""
        engine = self.hold_engine(**env)
        self.deploy_gated(1)
        port = self.load(self.until_status(0, "serving")["url"])
        self.assertEqual(self.gates(), [])
        return engine, port

    def ends_well(self):
        self.unload()
        self.assertEqual([client.failures for client in self.clients], [[]] * CLIENTS)

    def test_each_step_that_the_gate_passes_leads_to_the_next(self):
        self.begin()
        self.deploy_gated(2)
        self.until("the gate runs", self.gates)
        second = self.versions()[1]["run"]
        shown = self.show(second)
        self.assertEqual((shown["status"], shown["rollover"]["phase"], shown["rollover"]["percent"]), ("running", "gated", 20))
        tasks = {task["name"]: task["status"] for task in shown["tasks"]}
        self.assertEqual(tasks, {"scale": "running", "scale/check": "running"})
        self.assertIn("gated, step 1 of 2, 20% of the traffic", self.good("show", second).out)
        self.assertEqual(self.versions()[0]["status"], "serving")
        self.open("open")
        self.until_status(1, "serving")
        calls = self.gates()
        self.assertEqual([(version, step, errors) for version, step, _, errors in calls], [(second, "1", "0"), (second, "2", "0")])
        for _, _, requests, _ in calls:
            self.assertGreaterEqual(int(requests), 5)
        tasks = self.tasks(second)
        self.assertEqual({name: tasks[name]["status"] for name in tasks},
                         {"scale": "running", "scale/check": "succeeded", "scale/check#2": "succeeded"})
        self.assertIn("asked about step 2", self.good("logs", second, "scale/check#2").out)
        for near in ("chk", "check", "chekc"):
            self.exits(2, self.flow("logs", second, near), "has no task `%s` (did you mean `scale/check`?)" % near)
        self.logs("rollover gate called", "rollover gate answered", "rollover step", "rollover gate called", "rollover done")
        # The cache has the results of an equal call, but does not answer.
        self.deploy_gated(2)
        self.until_status(2, "serving")
        self.assertEqual(len(self.gates()), 4)
        self.ends_well()
        self.open("gate")

    def test_a_gate_that_does_not_return_true_gives_the_traffic_back(self):
        self.begin()
        self.open("open")
        for number, (decide, what) in enumerate((("return false", "false"), ('return "yes"', '"yes"'), ("", "nothing"))):
            done = self.end(self.deploy_gated(2, decide))
            self.exits(1, done, "the canary at 20%% failed: its gate `scale/check` returned %s; the version before, " % what,
                       "has all traffic again")
            shown = self.show(self.versions()[number + 1]["run"])
            self.assertEqual(shown["rollover"]["phase"], "reverted")
            self.assertIn("returned %s; the version" % what, shown["rollover"]["reason"])
        self.assertEqual(self.versions()[0]["status"], "serving")
        self.assertEqual([step for _, step, _, _ in self.gates()], ["1"] * 3)
        self.ends_well()
        self.open("gate")

    def test_a_gate_that_fails_gives_the_traffic_back_and_a_retry_asks_it_again(self):
        self.begin()
        self.open("open")
        decide = 'if not flow.fs.exists("%s") then error("no labels") end return true' % self.path("labels")
        done = self.end(self.deploy_gated(2, decide, "retries = { max = 1, backoff = '1ms' }"))
        self.exits(1, done, "its gate `scale/check` failed: ", "no labels", "has all traffic again")
        second = self.versions()[1]["run"]
        tasks = self.tasks(second)
        self.assertEqual((tasks["scale/check"]["status"], tasks["scale/check"]["attempts"]), ("failed", 2))
        self.assertIn("its gate `scale/check` failed", tasks["scale"]["error"])
        self.assertEqual(self.versions()[0]["status"], "serving")
        self.exits(2, self.flow("retry", second, "scale/check"), "scale/check")
        self.open("labels")
        self.start("retry", second)
        self.until_status(1, "serving")
        self.assertEqual([step for _, step, _, _ in self.gates()], ["1", "1", "1", "2"])
        self.ends_well()
        self.open("gate")

    def test_a_command_that_detaches_waits_for_the_decision(self):
        _, port = self.begin()
        refused = self.deploy_gated(2, "return false", words=("--detach",))
        self.until("the gate runs", self.gates)
        self.open("open")
        self.exits(1, self.end(refused), "the canary at 20% failed: its gate `scale/check` returned false")
        os.remove(self.path("open"))
        passed = self.deploy_gated(3, words=("--detach",))
        self.until("the gate runs again", lambda: len(self.gates()) == 2)
        self.open("open")
        self.exits(0, self.end(passed), "scale serves at http://127.0.0.1:%d" % port)
        self.assertEqual([run["status"] for run in self.versions()], ["succeeded", "failed", "serving"])
        self.until_answers(3, port)
        self.ends_well()
        self.good("stop", "prod")
        self.open("gate")

    def test_a_version_whose_gate_runs_can_be_cancelled(self):
        _, port = self.begin()
        self.deploy_gated(2, words=("--grace", "1s"))
        self.until("the gate runs", self.gates)
        self.good("cancel", self.versions()[1]["run"])
        self.until_answers(1, port)
        self.deploy_gated(3, words=("--grace", "1s"))
        self.until("the gate runs again", lambda: len(self.gates()) == 2)
        self.good("stop", self.versions()[2]["run"])
        self.assertEqual([run["status"] for run in self.versions()], ["serving", "cancelled", "succeeded"])
        self.until_answers(1, port)
        self.ends_well()
        self.open("gate")

    def test_the_version_before_may_end_while_the_gate_runs(self):
        _, port = self.begin()
        self.deploy_gated(2, words=("--grace", "1s"))
        self.until("the gate runs", self.gates)
        self.good("stop", self.versions()[0]["run"])
        self.until_status(1, "serving")
        self.until_answers(2, port)
        self.assertEqual(list(self.tasks(self.versions()[1]["run"])), ["scale"])
        self.ends_well()
        self.open("gate")

    def test_what_cannot_be_a_gate_is_refused(self):
        other = 'local other = flow.%s("other", {%s}%s)'
        for what, gate, words in (
                ("", "nothing", "`nothing`"),
                ("", '"check"', "the option `canary.gate` must be a task, which is called with { version, step, requests, "),
                (other % ("task", "", ", function(ctx, a, b) return true end"), "other", "the gate `other`, which takes 2 arguments"),
                (other % ("shell", "command = [[true]]", ""), "other", "the gate `other`, which can't return true"),
                (other % ("service", "", ", function() end"), "other", "the gate `other`, which can't return true")):
            self.write("refused.lua", rollover.SCRIPT.replace("BEFORE", what).replace("START", "").replace(
                "OPTIONS", "canary = { 10, gate = %s }" % gate).replace("FAILS", "false").replace("FACTOR", "1"))
            self.exits(2, self.flow("plan", "refused.lua"), words)

    def kill_in_gate(self, failpoint=None):
        engine, port = self.begin(**({"FLOW_FAILPOINT": failpoint} if failpoint else {}))
        before = listening_inodes(port)
        if failpoint:
            self.open("open")
        self.deploy_gated(2)
        if not failpoint:
            self.until("the gate runs", self.gates)
            engine.send_signal(signal.SIGKILL)
        self.assertEqual(self.end(engine).code, -signal.SIGKILL)
        self.open("open")
        # The processes of both runs resume them.
        self.until_answers(self.until_one_serves() + 1, port)
        self.assertEqual(listening_inodes(port), before)
        self.ends_well()

    def test_an_engine_that_is_killed_before_the_gate_is_called_leaves_one_version(self):
        self.kill_in_gate("gate-before-call")

    def test_an_engine_that_is_killed_while_the_gate_runs_leaves_one_version(self):
        self.kill_in_gate()

    def test_an_engine_that_is_killed_before_the_gate_has_answered_leaves_one_version(self):
        self.kill_in_gate("gate-before-answer")

    def test_an_engine_that_is_killed_after_the_gate_has_answered_leaves_one_version(self):
        self.kill_in_gate("traffic-before-shift:3")


if __name__ == "__main__":
    rollover.main()
