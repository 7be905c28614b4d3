#!/usr/bin/env python3
"""`flow trace`: a run as a timeline in the Trace Event Format.

usage: timeline.py --flow BIN [TEST...]
"""
import collections
import json
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import HOLD, Place, main  # noqa: E402

SCRIPT = r"""
local flow = require "flow"
local split = flow.task("split", function(ctx) return { 1, 2, 3, 4 } end)
local part = flow.task("part", { retries = { max = 2, backoff = "1ms" } }, function(ctx, i)
  if i == 2 and ctx.attempt < 3 then error("not yet") end
  return i
end)
local join = flow.shell("join", { args = { "all" }, command = [[echo {all}]] })
return flow.pipeline("timed", {}, function() return join(flow.map(part, split())).stdout end)
"""

REQUIRED = {"M": {"name", "pid", "tid", "args"}, "X": {"name", "cat", "ts", "dur", "pid", "tid"}, "C": {"name", "ts", "pid", "args"},
            "s": {"name", "cat", "id", "ts", "pid", "tid"}, "f": {"name", "cat", "id", "ts", "pid", "tid", "bp"},
            "b": {"name", "cat", "id", "ts", "pid", "tid"}, "e": {"name", "cat", "id", "ts", "pid", "tid"}}


class Timeline(Place):
    def trace(self, *words):
        self.assertEqual(self.good("trace", *words, "-o", "trace.json", "--force").out, "trace.json\n")
        trace = json.loads(self.read("trace.json"))
        for event in trace["traceEvents"]:
            self.assertLessEqual(REQUIRED[event["ph"]], set(event), event)
            if event["ph"] == "X":
                self.assertGreaterEqual(event["dur"], 0, event)
        return trace

    def slices(self, trace, category):
        return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] == category]

    def check_nesting(self, trace):
        """Slices of a thread are inside each other or apart."""
        threads = collections.defaultdict(list)
        for event in trace["traceEvents"]:
            if event["ph"] == "X":
                threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["cat"]))
        for slices in threads.values():
            attempts = sorted((begin, end) for begin, end, category in slices if category == "attempt")
            for (_, end), (begin, _) in zip(attempts, attempts[1:]):
                self.assertLessEqual(end, begin)
            for begin, end, category in slices:
                if category != "attempt":
                    self.assertTrue(any(b <= begin and end <= e for b, e in attempts), (begin, end, category))

    def test_each_attempt_is_a_slice_with_its_parts(self):
        self.write("timed.lua", SCRIPT)
        self.good("run", "timed.lua", "--quiet", "--jobs", "2")
        trace = self.trace("last")
        run = self.show()
        attempts = self.slices(trace, "attempt")
        self.assertEqual(len(attempts), sum(task["attempts"] for task in run["tasks"]))
        self.assertEqual(sorted((a["args"]["task"], a["args"]["attempt"], a["args"]["outcome"], a["args"].get("cause")) for a in attempts),
                         [("join", 1, "succeeded", None), ("part[1]", 1, "succeeded", None), ("part[2]", 1, "failed", "user_error"),
                          ("part[2]", 2, "failed", "user_error"), ("part[2]", 3, "succeeded", None), ("part[3]", 1, "succeeded", None),
                          ("part[4]", 1, "succeeded", None), ("split", 1, "succeeded", None)])
        for category in ("stage", "run", "commit"):
            self.assertEqual(len(self.slices(trace, category)), len(attempts), category)
        self.check_nesting(trace)
        self.assertEqual(trace["otherData"]["run"], run["run"])
        names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M" and e["name"] == "thread_name"}
        used = {(a["pid"], a["tid"]) for a in attempts}
        self.assertEqual(set(names), used)
        processes = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M" and e["name"] == "process_name"}
        self.assertEqual({processes[pid] for pid, _ in used}, {"worker local"})

    def test_attempts_that_run_at_once_have_a_slot_each(self):
        self.write("hold.lua", HOLD + 'return flow.pipeline("p", {}, function()\n'
                   '  local all = {} for i = 1, 4 do all[i] = hold("%s", "t" .. i) end return all end)\n' % self.path("gate"))
        process = self.start("run", "hold.lua", "--quiet", "--jobs", "2")
        self.until("two run", lambda: os.path.exists(self.path("gate.started")) and len(self.read("gate.started").split()) == 2)
        running = self.slices(self.trace(), "attempt")
        self.assertEqual(sorted(a["tid"] for a in running), [1, 2])
        self.open("gate")
        self.exits(0, self.end(process))
        self.check_nesting(self.trace())

    def test_arrows_follow_the_dependencies_and_counters_come_back_to_zero(self):
        self.write("timed.lua", SCRIPT)
        self.good("run", "timed.lua", "--quiet")
        trace = self.trace()
        attempts = self.slices(trace, "attempt")

        def of(event):
            """The tasks whose attempts the end of an arrow touches; more than one if an attempt ends as the next begins."""
            return {a["args"]["task"] for a in attempts if (a["pid"], a["tid"]) == (event["pid"], event["tid"])
                    and event["ts"] == (a["ts"] + a["dur"] if event["ph"] == "s" else a["ts"])}
        ends = {phase: {e["id"]: e for e in trace["traceEvents"] if e["ph"] == phase} for phase in "sf"}
        self.assertEqual(set(ends["s"]), set(ends["f"]))
        for number, begin in ends["s"].items():
            self.assertLessEqual(begin["ts"], ends["f"][number]["ts"])
        wanted = [("split", "part[%d]" % i) for i in (1, 2, 3, 4)] + [("part[%d]" % i, "join") for i in (1, 2, 3, 4)]
        self.assertEqual(len(ends["s"]), len(wanted))
        for parent, child in wanted:
            self.assertTrue([n for n in ends["s"] if parent in of(ends["s"][n]) and child in of(ends["f"][n])], (parent, child))
        queues = collections.Counter((e["id"], e["ph"]) for e in trace["traceEvents"] if e["ph"] in "be")
        self.assertEqual(set(queues.values()), {1})
        self.assertEqual(len(queues), 2 * len(attempts))
        counters = [e for e in trace["traceEvents"] if e["ph"] == "C"]
        self.assertEqual(counters[-1]["args"], {"queued": 0, "running": 0})
        self.assertEqual([e["ts"] for e in counters], sorted(e["ts"] for e in counters))
        self.assertTrue(all(e["args"]["running"] >= 0 and e["args"]["queued"] >= 0 for e in counters))

    def test_attempts_before_a_resume_and_those_of_a_killed_engine_are_kept(self):
        self.write("hold.lua", HOLD + 'return flow.pipeline("p", {}, function() return hold("%s", "it").stdout end)\n' % self.path("gate"))
        first = self.start("run", "hold.lua", "--quiet")
        self.until_holds("it")
        running = self.slices(self.trace(), "attempt")
        self.assertEqual([(a["args"]["attempt"], a["args"]["outcome"]) for a in running], [(1, "running")])
        self.kill(first)
        second = self.start("resume", "--quiet", "--grace", "0s")
        self.until("it runs again", lambda: self.read("gate.started").split() == ["it", "it"])
        second.send_signal(signal.SIGINT)
        self.exits(3, self.end(second))
        self.open("gate")
        self.good("resume", "--quiet")
        self.good("retry", "last", "hold", "--quiet")
        trace = self.trace()
        attempts = sorted((a["args"]["attempt"], a["args"]["outcome"]) for a in self.slices(trace, "attempt"))
        outcomes = [outcome for _, outcome in attempts]
        self.assertEqual((outcomes[0], outcomes[2:]), ("stopped", ["succeeded", "succeeded"]), attempts)
        self.assertIn(outcomes[1], ("stopped", "failed"), attempts)
        self.assertEqual(len(attempts), self.tasks()["hold"]["attempts"])
        self.check_nesting(trace)

    def test_rows_of_attempts_leave_with_their_run(self):
        self.write("timed.lua", SCRIPT)
        self.good("run", "timed.lua", "--quiet")
        self.good("gc", "--keep", "0")
        self.exits(2, self.flow("trace", "-o", "trace.json"), "there is no run")

    def test_what_is_wrong_is_said(self):
        self.write("timed.lua", SCRIPT)
        self.good("run", "timed.lua", "--quiet")
        self.exits(2, self.flow("trace"), "`flow trace` needs -o")
        self.exits(2, self.flow("trace", "-o", "-"), "cannot write to stdout")
        self.open("there.json")
        self.exits(2, self.flow("trace", "-o", "there.json"), "`there.json` exists already", "--force")
        self.exits(2, self.flow("trace", "nobody", "-o", "x.json"), "nobody")
        self.exits(4, self.flow("trace", "-o", "no/such/x.json"), "no/such")
        self.assertEqual(self.good("trace", "-o", "x.json", "--json").lines(), [{"path": "x.json"}])


if __name__ == "__main__":
    main()
