#!/usr/bin/env python3
"""Detached runs go on when the process that executed them has died: at the next head, in the next flow that writes the
state, and in the flow that takes the state over.

usage: detached.py --flow BIN [TEST...]
"""
import glob
import json
import os
import signal
import sys
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import HOLD, SCALED, Place, main, unused_port  # noqa: E402

SCRIPT = SCALED.replace("port = 0", "OPTIONS")
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [4]}]}).encode()
LEASE = ("--front-lease", "10m")


def infer(url, **headers):
    request = urllib.request.Request(url + "/v2/models/scale/infer", BODY, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["outputs"][0]["data"][0]


class Detached(Place):
    def setUp(self):
        super().setUp()
        self.script()
        self.port = unused_port()

    def clean(self):
        for run in self.runs() if os.path.exists(self.state) else []:
            if run["status"] in ("running", "serving", "waiting"):
                self.flow("stop", run["run"], "--grace", "1s")
        super().clean()

    def script(self, options="port = 0", name="pipeline.lua"):
        self.write(name, SCRIPT.replace("OPTIONS", options))

    def hold(self, gate="gate"):
        self.write("hold.lua", HOLD + 'return flow.pipeline("held", {}, function() return hold("%s", "a") end)' % self.path(gate))

    def head(self, **env):
        head = self.start("head", "--listen", "127.0.0.1:%d" % self.port, "--jobs", "2", "--log-file", self.path("log"), **env)
        self.until("the head listens", lambda: self.flow("nodes").code == 0)
        return head

    def services(self):
        return {service["version"]: service for service in self.good("services", "--json").lines()}

    def pids(self):
        """Of the replicas, by version."""
        return {version: [replica["pid"] for replica in service["replicas"]] for version, service in self.services().items()}

    def percents(self):
        return {version: service["percent"] for version, service in self.services().items()}

    def until_serves(self, *runs):
        """All these runs, and no others, with a front that answers."""
        def all_serve():
            services = self.services()
            return sorted(services) == sorted(runs) and all(
                each["status"] in ("serving", "running") and each["ready"] for each in services.values())
        self.until("they serve", all_serve)

    def background(self):
        """The processes in the background that execute runs of this state."""
        marks = (b"FLOW_DETACHED=", os.path.join(self.folder, "tmp").encode())
        pids = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/environ" % pid, "rb") as environment, open("/proc/%s/comm" % pid) as name:
                    text = environment.read()
                    if name.read() == "flow\n" and all(mark in text for mark in marks):
                        pids.append(int(pid))
            except OSError:
                pass  # it has ended
        return pids

    def kill_pid(self, pid):
        os.kill(pid, signal.SIGKILL)
        self.until("it has ended", lambda: not os.path.exists("/proc/%d" % pid))

    def test_a_new_head_goes_on_with_what_the_one_before_served(self):
        head = self.head()
        left = self.detached("run", ".", "--name", "prod", *LEASE)
        url, pids = left["services"][0]["url"], self.pids()
        self.kill(head)
        self.assertEqual(infer(url), 8)
        self.head()
        self.until_serves(left["run"])
        self.assertEqual((self.pids(), self.show("prod")["url"]), (pids, url))
        self.assertEqual(infer(url), 8)
        self.until("the log says so", lambda: "run resumed" in self.read("log"))
        self.exits(2, self.flow("retry", "prod"), "is serving already")  # and the run is still nobody's
        # A command that would have been needed to resume it does no harm.
        again = self.detached("resume", "prod", *LEASE)
        self.assertEqual((again["run"], again["services"]), (left["run"], left["services"]))
        self.assertEqual(self.pids(), pids)
        self.exits(2, self.flow("resume", "prod"), "is serving already")
        # A replica that dies is started again by this head.
        self.kill_pid(pids[left["run"]][0])
        self.until("another replica serves", lambda: self.pids()[left["run"]] not in (pids[left["run"]], [None], []))
        self.until("it answers", lambda: self.show("prod")["url"] == url)
        self.assertEqual(infer(url), 8)
        self.assertEqual(self.good("stop", "prod").out, "stopped %s: succeeded\n" % left["run"])

    def test_a_head_that_is_asked_to_end_leaves_its_services_to_the_next_one(self):
        head = self.head()
        left = self.detached("run", ".", "--name", "prod", *LEASE)
        url, pids = left["services"][0]["url"], self.pids()
        head.send_signal(signal.SIGTERM)
        self.exits(0, self.end(head))
        self.assertEqual(infer(url), 8)
        self.head()
        self.until_serves(left["run"])
        self.assertEqual(self.pids(), pids)
        self.assertEqual(infer(url), 8)

    def test_a_new_head_starts_services_again_after_their_lease(self):
        head = self.head()
        left = self.detached("run", ".", "--name", "prod", "--front-lease", "100ms")
        url, pids = left["services"][0]["url"], self.pids()[left["run"]]
        self.kill(head)
        self.until("nothing serves any more", lambda: not any(os.path.exists("/proc/%d" % pid) for pid in self.serving() + pids))
        self.head()
        self.until_serves(left["run"])
        self.assertNotEqual(self.pids()[left["run"]], pids)
        self.assertEqual((self.show("prod")["url"], infer(url)), (url, 8))

    def test_a_version_at_a_new_head_has_its_canary(self):
        head = self.head()
        first = self.detached("run", ".", "--name", "prod", *LEASE)
        url = first["services"][0]["url"]
        self.kill(head)
        self.head()
        self.script('port = 0, canary = { 50, 100, every = "1h" }')
        self.start("run", ".", "--name", "prod", "--param", "by=3", "--detach", *LEASE)
        self.until("both have their part", lambda: sorted(percent or 0 for percent in self.percents().values()) == [50, 50])
        self.assertEqual({infer(url) for _ in range(10)}, {8, 12})
        self.assertEqual(self.show(first["run"])["status"], "serving")

    def test_a_run_that_a_head_cannot_resume_is_reported(self):
        self.script('port = 0, keys = flow.env("SCALE_KEYS")')
        head = self.head()
        left = self.detached("run", ".", "--name", "prod", *LEASE, SCALE_KEYS="one-key")
        url = left["services"][0]["url"]
        self.kill(head)
        head = self.head()
        why = "needs the environment variable SCALE_KEYS"
        self.assertIn(why, self.show("prod")["not_resumed"])
        self.assertIn(why, self.good("show", "prod").out)
        self.assertIn("its run is not resumed: ", self.good("services").out)
        self.assertIn(why, self.services()[left["run"]]["not_resumed"])
        self.until("the log says so", lambda: "run not resumed" in self.read("log"))
        self.assertEqual(infer(url, Authorization="Bearer one-key"), 8)
        # A canary beside it is refused, since nothing would be measured.
        self.script('port = 0, canary = { 50, 100, every = "1h" }', "canary.lua")
        self.exits(2, self.flow("run", "canary.lua", "--name", "prod", "--detach"), "cannot be resumed: ", why, "no canary beside it",
                   "flow resume %s --detach" % left["run"], "flow cancel %s" % left["run"], 'rollover = "replace"')
        self.assertEqual(list(self.services()), [left["run"]])
        again = self.detached("resume", "prod", *LEASE, SCALE_KEYS="one-key")
        self.assertEqual(again["services"], left["services"])
        self.assertNotIn("not_resumed", self.show("prod"))
        self.good("stop", "prod")
        head.send_signal(signal.SIGINT)
        self.exits(0, self.end(head), "flow: the run %s is not resumed: " % left["run"], why, "flow resume %s --detach" % left["run"])

    def test_the_next_flow_on_the_state_goes_on_with_what_was_served_and_may_end(self):
        left = self.detached("run", ".", "--name", "prod", *LEASE)
        url, pids = left["services"][0]["url"], self.pids()
        self.kill_pid(left["pid"])
        self.write("plain.lua", 'local flow = require "flow"\nreturn flow.pipeline("plain", {}, function() return 1 end)')
        self.good("run", "plain.lua")
        self.until_serves(left["run"])
        self.assertEqual((self.pids(), infer(url)), (pids, 8))
        self.assertFalse(self.is_free())
        self.assertEqual(self.good("stop", "prod").out, "stopped %s: succeeded\n" % left["run"])
        self.until("the state is free", self.is_free)

    def test_a_version_beside_one_whose_process_died_has_its_canary(self):
        first = self.detached("run", ".", "--name", "prod", *LEASE)
        pids = self.pids()[first["run"]]
        self.kill_pid(first["pid"])
        self.script('port = 0, canary = { 50, 100, every = "1h" }')
        self.start("run", ".", "--name", "prod", "--param", "by=3", *LEASE)
        self.until("both have their part", lambda: sorted(percent or 0 for percent in self.percents().values()) == [50, 50])
        self.assertEqual(self.pids()[first["run"]], pids)

    def test_a_detached_run_goes_on_when_its_process_is_killed_beside_a_writer(self):
        self.hold()
        writer = self.start("run", "hold.lua")
        self.until_holds("a")
        left = self.detached("run", ".", "--name", "prod", *LEASE)
        url, pids = left["services"][0]["url"], self.pids()
        self.kill_pid(left["pid"])
        # The writer learns of it before it answers another client.
        self.good("signal", left["run"], "nothing")
        self.assertEqual((self.show("prod")["status"], self.pids(), infer(url)), ("serving", pids, 8))
        # The next writer resumes it.
        self.kill(writer)
        self.head()
        self.until_serves(left["run"])
        self.assertEqual((self.pids(), infer(url)), (pids, 8))
        self.open("gate")

    def test_the_death_of_the_writer_leaves_both_versions_of_a_canary(self):
        first = self.detached("run", ".", "--name", "prod", *LEASE)
        url = first["services"][0]["url"]
        self.script('port = 0, canary = { 50, 100, every = "1h" }')
        self.start("run", ".", "--name", "prod", "--param", "by=3", "--detach", *LEASE)
        self.until("both have their part", lambda: sorted(percent or 0 for percent in self.percents().values()) == [50, 50])
        pids = self.pids()
        second = max(pids)
        self.kill_pid(first["pid"])
        self.until("the canary goes on", lambda: not self.is_free() and self.percents() == {first["run"]: 50, second: 50}
                   and self.show(second).get("rollover", {}).get("phase") == "observing")
        self.assertEqual(self.pids(), pids)
        self.assertEqual(self.show(first["run"])["status"], "serving")
        self.assertEqual({infer(url) for _ in range(10)}, {8, 12})

    def test_any_command_goes_on_with_both_versions_of_a_canary(self):
        first = self.detached("run", ".", "--name", "prod", *LEASE)
        url = first["services"][0]["url"]
        self.script('port = 0, canary = { 50, 100, every = "1h" }')
        second = self.start("run", ".", "--name", "prod", "--param", "by=3", *LEASE, "--detach")
        self.until("both have their part", lambda: sorted(percent or 0 for percent in self.percents().values()) == [50, 50])
        pids = self.pids()
        newer = max(pids)
        (other,) = set(self.background()) - {first["pid"]}
        self.kill_pid(other)
        self.kill_pid(first["pid"])
        self.end(second)
        self.write("plain.lua", 'local flow = require "flow"\nreturn flow.pipeline("plain", {}, function() return 1 end)')
        self.good("run", "plain.lua")
        self.until("the canary goes on", lambda: self.percents() == {first["run"]: 50, newer: 50})
        self.assertEqual(self.pids(), pids)
        self.assertEqual({infer(url) for _ in range(10)}, {8, 12})

    def test_a_canary_that_is_gone_on_with_continues_at_its_step(self):
        check = '''
local check = flow.task("check", function(ctx, measured)
  flow.fs.append("FOLDER/gates", measured.step .. "\\n")
  while measured.step == 2 and not flow.fs.exists("FOLDER/open") do end
  return true
end)
local factor'''.replace("FOLDER", self.folder)
        first = self.detached("run", ".", "--name", "prod", *LEASE)
        url = first["services"][0]["url"]
        options = 'port = 0, warmup = { x = flow.zeros { 1 } }, canary = { 20, 60, 100, every = "1s", min_requests = 2, gate = check }'
        self.write("pipeline.lua", SCRIPT.replace("local factor", check).replace("OPTIONS", options))
        second = self.start("run", ".", "--name", "prod", "--param", "by=3", *LEASE, "--detach")

        def gates():
            return self.read("gates").split() if os.path.exists(self.path("gates")) else []
        self.until("the gate of the second step runs", lambda: gates() == ["1", "2"])
        pids = self.pids()
        newer = max(pids)
        for pid in sorted(self.background(), key=lambda each: each == first["pid"]):  # the writer last
            self.kill_pid(pid)
        self.end(second)
        self.until("the version before has all traffic", lambda: self.percents() == {first["run"]: 100, newer: 0})
        self.write("plain.lua", 'local flow = require "flow"\nreturn flow.pipeline("plain", {}, function() return 1 end)')
        self.good("run", "plain.lua")
        self.until("the gate of that step runs again", lambda: len(gates()) > 2)
        self.assertEqual(gates(), ["1", "2", "2"])  # and the first step not again
        self.assertEqual((self.percents(), self.pids()), ({first["run"]: 40, newer: 60}, pids))
        self.open("open")
        self.until_serves(newer)
        self.assertEqual((self.show(newer)["status"], gates(), infer(url)), ("serving", ["1", "2", "2", "3"], 12))
        self.assertEqual(self.show(first["run"])["status"], "succeeded")
        tasks = {task["name"]: task["status"] for task in self.show(newer)["tasks"]}
        self.assertEqual([tasks[name] for name in ("scale/check", "scale/check#2", "scale/check#3")], ["succeeded"] * 3)

    def test_a_run_of_a_head_is_taken_over_without_a_head_on_request(self):
        head = self.head()
        left = self.detached("run", ".", "--name", "prod", *LEASE)
        url, pids = left["services"][0]["url"], self.pids()
        self.kill(head)
        # Another run does not: a head that is started again must find the state free.
        self.write("plain.lua", 'local flow = require "flow"\nreturn flow.pipeline("plain", {}, function() return 1 end)')
        self.good("run", "plain.lua")
        self.assertEqual((self.is_free(), self.show("prod")["status"], infer(url)), (True, "interrupted", 8))
        again = self.detached("resume", "prod", *LEASE)
        self.assertEqual((again["services"], self.pids(), infer(url)), (left["services"], pids, 8))
        self.good("stop", "prod")

    def test_a_new_version_beside_a_run_of_a_dead_head_has_its_canary(self):
        head = self.head()
        left = self.detached("run", ".", "--name", "prod", *LEASE)
        pids = self.pids()[left["run"]]
        self.kill(head)
        self.script('port = 0, canary = { 50, 100, every = "1h" }')
        self.start("run", ".", "--name", "prod", "--param", "by=3", *LEASE)
        self.until("both have their part", lambda: sorted(percent or 0 for percent in self.percents().values()) == [50, 50])
        self.assertEqual(self.pids()[left["run"]], pids)

    def lease(self):
        """Of the front, in milliseconds."""
        (record,) = glob.glob(os.path.join(self.state, "fronts", "*", "front.pid"))
        with open("/proc/%s/cmdline" % self.read(record).strip(), "rb") as command:
            words = command.read().decode().split("\0")
        return int(words[words.index("--lease") + 1])

    def test_a_run_that_was_followed_keeps_its_lease_in_each_resume(self):
        def end_services():
            self.until("nothing serves any more", lambda: not any(os.path.exists("/proc/%d" % pid) for pid in self.serving()))
        self.write("plain.lua", 'local flow = require "flow"\nreturn flow.pipeline("plain", {}, function() return 1 end)')
        run = self.start("run", ".", "--name", "prod", "--front-lease", "150ms")
        self.until("it serves", lambda: self.flow("show", "prod").code == 0 and self.show("prod")["status"] == "serving")
        self.assertEqual(self.lease(), 150)
        self.kill(run)
        end_services()
        self.good("run", "plain.lua")
        self.assertEqual(self.show("prod")["status"], "interrupted")  # nobody goes on with it by itself
        left = self.detached("resume", "prod")
        self.assertEqual(self.lease(), 150)
        self.kill_pid(left["pid"])
        end_services()
        self.start("resume", "prod")
        self.until_serves(left["run"])
        self.assertEqual(self.lease(), 150)

    def test_a_run_that_was_followed_keeps_for_how_long_it_serves(self):
        for resume in ("resume", "prod"), ("resume", "prod", "--detach"):
            self.write("pipeline.lua", SCRIPT.replace("OPTIONS", "port = 0").replace("return n end", """
  flow.fs.append("%s", "x")
  while not flow.fs.exists("%s") do end
  return n end""" % (self.path("started"), self.path("open")), 1))
            run = self.start("run", ".", "--name", "prod", "--serve-for", "0s", "--fresh")
            self.until("its task runs", lambda: os.path.exists(self.path("started")))
            self.kill(run)
            self.open("open")
            self.good(*resume)
            self.until("it has ended", lambda: self.show("prod")["status"] == "succeeded")
            os.remove(self.path("started"))
            os.remove(self.path("open"))

    def test_a_run_that_was_stopped_is_not_resumed(self):
        self.hold()
        left = self.detached("run", "hold.lua", "--name", "held")
        self.until_holds("a")
        self.assertEqual(self.good("stop", "held", "--grace", "0s").out, "stopped %s: interrupted\n" % left["run"])
        self.until("the state is free", self.is_free)
        self.head()
        self.assertEqual(self.show("held")["status"], "interrupted")
        self.assertNotIn("not_resumed", self.show("held"))


if __name__ == "__main__":
    main()
