#!/usr/bin/env python3
"""The verbs of services: a run that goes on in the background or at a head, its end by another process, and new runs
that serve the services of earlier ones.

usage: services.py --flow BIN [TEST...]
"""
import json
import os
import re
import signal
import sys
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import HOLD, SCALED, Place, main, unused_port  # noqa: E402

SCRIPT = SCALED
# Services that branches, dynamic tasks and maps of these return.
JOINED = SCRIPT[:SCRIPT.index("return flow.pipeline")] + r'''
local yes = flow.task("yes", function(ctx) return true end)
local url = flow.task("url", function(ctx, api) return api.url end)
local pair = flow.service("pair", { port = 0, replicas = 2 }, function(ctx) return { predict = function(x) return x end } end)
local some = flow.dynamic("some", function(ctx, by) return { scale(by), by } end)
return flow.pipeline("joined", {}, function()
  local ok = yes()
  flow.when(ok, function() return scale(1) end)
  local direct = flow.when(ok, function() return scale(2) end)
  local nested = flow.when(ok, function()
    return { inner = flow.when(ok, function() return { api = scale(3), n = 3 } end), outer = direct }
  end)
  return {
    direct = direct, nested = nested, part = nested.inner.api, taken = url(direct),
    some = some(4), mapped = flow.map(some, { 5, 6 }), pair = flow.when(ok, function() return pair() end),
    other = flow.when(ok, function() return 1 end, function() return scale(7) end),
  }
end)
'''
# The branch has its value while the run waits for a signal.
OPEN = SCRIPT[:SCRIPT.index("return flow.pipeline")] + r'''
local go = flow.task("go", function(ctx) return ctx:wait("go") end)
return flow.pipeline("open", {}, function()
  return { api = flow.when(factor(2), function() return scale(2) end), go = go() }
end)
'''
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [4]}]}).encode()


def infer(url):
    with urllib.request.urlopen(url + "/v2/models/scale/infer", BODY, timeout=60) as answer:
        return json.load(answer)["outputs"][0]["data"]


def counted_durations(url, version):
    """The histogram of the version at /metrics of its front: (limit in seconds, requests), not cumulative."""
    with urllib.request.urlopen(url + "/metrics", timeout=60) as answer:
        text = answer.read().decode()
    buckets, before = [], 0
    for of, limit, number in re.findall(r'^flow_service_request_duration_seconds_bucket\{model="scale",version="(.*?)",le="(.*?)"\} (\d+)$', text, re.MULTILINE):
        if of == version:
            buckets.append((limit, int(number) - before))
            before = int(number)
    return buckets


def latency_of(service):
    """The same, of `latency` of the service."""
    return [("+Inf" if bucket["up_to_ms"] is None else "%g" % (bucket["up_to_ms"] / 1000), bucket["requests"]) for bucket in service["latency"]]


class Services(Place):
    def setUp(self):
        super().setUp()
        self.write("pipeline.lua", SCRIPT)

    def clean(self):
        # Processes in the background end with their runs.
        for run in self.active():
            self.flow("stop", run, "--grace", "1s")
        super().clean()

    def active(self):
        return [run["run"] for run in self.runs() if run["status"] in ("running", "serving", "waiting")]

    def test_a_detached_run_serves_after_its_command_has_ended_until_it_is_stopped(self):
        left = self.detached("run", ".")
        self.assertEqual(left["pipeline"], "scaled")
        self.assertEqual([each["service"] for each in left["services"]], ["scale"])
        self.assertEqual(infer(left["services"][0]["url"]), [8])
        self.assertEqual(left["log"], os.path.join(self.state, "detached.log"))
        # It is in a session of its own, without a terminal.
        with open("/proc/%d/stat" % left["pid"]) as file:
            fields = file.read().rsplit(")", 1)[1].split()
        self.assertNotEqual(int(fields[3]), os.getsid(0))
        self.assertEqual(int(fields[4]), 0)
        shown = self.show(left["run"])
        self.assertEqual(shown["status"], "serving")
        (service,) = shown["services"]
        self.assertEqual({name: service[name] for name in ("service", "version", "url")},
                         {"service": "scale", "version": left["run"], "url": left["services"][0]["url"]})
        self.assertEqual([(each["name"], each["status"]) for each in service["replicas"]], [("scale", "ready")])
        # `flow ls` does not ask the fronts.
        self.assertTrue(os.path.exists("/proc/%d" % service["replicas"][0]["pid"]))
        service["replicas"][0]["pid"] = None
        self.assertEqual([each.get("services") for each in self.runs()], [[service]])

        stopped = self.good("stop", left["run"])
        self.assertEqual(stopped.out, "stopped %s: succeeded\n" % left["run"])
        self.assertEqual(self.show(left["run"])["status"], "succeeded")
        self.assertNotIn("services", self.show(left["run"]))
        self.until("the state is free", self.is_free)
        self.assertIn('"event":"serving"', self.read(".flow/detached.log"))

    def test_the_text_of_a_detached_run_names_its_process_its_log_and_its_end(self):
        done = self.good("run", ".", "--name", "prod", "--detach")
        first, second, third = done.out.splitlines()
        run = first.split()[1]
        self.assertEqual(first, "run %s of scaled" % run)
        self.assertRegex(second, r"^scale serves at http://127\.0\.0\.1:\d+$")
        self.assertRegex(third, r"^it continues in the background \(process \d+, log .*/\.flow/detached\.log\); "
                                r"`flow stop %s` ends it$" % run)
        self.assertEqual(self.good("stop", "prod", "--json").lines(), [{"run": run, "status": "succeeded"}])

    def test_a_hang_up_does_not_end_a_detached_run(self):
        left = self.detached("run", ".", "--name", "prod")
        with open("/proc/%d/stat" % left["pid"]) as file:
            group = int(file.read().rsplit(")", 1)[1].split()[2])
        self.assertNotEqual(group, os.getpgrp())  # which a closed terminal signals
        self.assertEqual(infer(left["services"][0]["url"]), [8])
        self.good("stop", "prod")

    def test_a_detached_run_that_fails_before_it_serves_is_an_error_with_its_exit_code(self):
        self.write("pipeline.lua", SCRIPT.replace("return n end", 'error("no factor") end'))
        done = self.flow("run", ".", "--detach")
        self.exits(1, done, "`factor` failed", "no factor")
        self.assertEqual(self.show()["status"], "failed")
        self.until("the state is free", self.is_free)
        self.exits(2, self.flow("run", "missing.lua", "--detach"), "there is no script `missing.lua`")
        self.write("wrong.lua", "return 3")
        done = self.exits(2, self.flow("run", "wrong.lua", "--detach"), "wrong.lua")
        self.assertEqual(done.err.count("error:"), 1, done)

    def test_a_detached_run_without_services_is_left_at_once(self):
        self.write("pipeline.lua", HOLD + '''
return flow.pipeline("held", {}, function() return hold("%s", "a") end)''' % self.path("gate"))
        left = self.detached("run", ".")
        self.assertEqual(left["services"], [])
        self.until_holds("a")
        self.assertEqual(self.show(left["run"])["status"], "running")
        self.open("gate")
        self.until("it succeeds", lambda: self.show(left["run"])["status"] == "succeeded")

    def test_a_run_with_open_tasks_is_interrupted_by_a_stop(self):
        self.write("pipeline.lua", HOLD + '''
return flow.pipeline("held", {}, function() return hold("%s", "a") end)''' % self.path("gate"))
        run = self.start("run", ".", "--name", "held")
        self.until_holds("a")
        stopped = self.start("stop", "held", "--json", "--grace", "0s")
        (line,) = self.exits(0, self.end(stopped)).lines()
        self.assertEqual(line["status"], "interrupted")
        self.exits(3, self.end(run))
        self.exits(2, self.flow("stop", "held"), "can't be stopped: it is interrupted", "flow resume " + line["run"])
        self.open("gate")
        self.good("resume", line["run"])
        self.exits(2, self.flow("stop", "held"), "can't be stopped: it has succeeded")
        self.exits(2, self.flow("stop", "hold"), "there is no run `hold` (did you mean `held`?)")

    def test_a_run_is_served_again_from_its_plan_and_the_cache(self):
        first = self.detached("run", ".", "--name", "one", "--param", "by=3")
        self.good("stop", "one")
        self.write("pipeline.lua", "this is not what was served")
        again = self.detached("serve", "one")
        self.assertEqual(again["name"], "one")
        self.assertNotEqual(again["run"], first["run"])
        self.assertEqual(infer(again["services"][0]["url"]), [12])
        shown = self.show(again["run"])
        self.assertEqual((shown["params"], shown["counts"]["cached"]), ({"by": 3}, 1))
        self.good("stop", "one")

        other = self.detached("deploy", first["run"], "--name", "two")
        self.assertEqual(other["name"], "two")
        self.assertEqual(infer(other["services"][0]["url"]), [12])
        self.good("stop", "two")
        self.exits(2, self.flow("rollback", "two"), "no run with the name `two` serves")
        self.exits(2, self.flow("serve", "three"), "there is no run `three`")

    def test_a_service_in_the_value_of_a_branch_or_a_dynamic_task_is_its_url(self):
        self.write("pipeline.lua", JOINED)
        left = self.detached("run", ".")
        shown = self.show(left["run"])
        self.assertEqual((shown["status"], shown["counts"]["failed"]), ("serving", 0))
        api = {each["service"]: {"url": each["url"]} for each in shown["services"]}
        self.assertEqual(len({each["url"] for each in api.values()}), 7, api)
        self.assertEqual(shown["result"], {
            "direct": api["scale#2"], "nested": {"inner": {"api": api["scale#3"], "n": 3}, "outer": api["scale#2"]},
            "part": api["scale#3"], "taken": api["scale#2"]["url"], "some": [api["some/scale"], 4],
            "mapped": [[api["some#2[1]/scale"], 5], [api["some#2[2]/scale"], 6]], "pair": api["pair"], "other": 1})
        self.assertEqual(infer(shown["result"]["mapped"][1][0]["url"]), [24])
        self.good("stop", left["run"])
        self.assertEqual(self.show(left["run"])["result"], shown["result"])

    def test_a_resumed_run_has_the_url_of_a_service_in_a_branch_that_was_complete(self):
        self.write("pipeline.lua", OPEN)
        run = self.start("run", ".", "--name", "prod")
        self.until_waits("go")
        self.until("it is ready", lambda: any(each["url"] for each in self.show("prod")["services"]))
        run.send_signal(signal.SIGINT)
        self.exits(3, self.end(run))
        again = self.start("resume", "prod")
        self.until("it is ready again", lambda: any(each["url"] for each in self.show("prod").get("services", [])))
        self.good("signal", "prod", "go", "3")
        self.until("it serves", lambda: self.show("prod")["status"] == "serving")
        shown = self.show("prod")
        self.assertEqual(shown["result"], {"api": {"url": shown["services"][0]["url"]}, "go": 3})
        self.assertEqual(infer(shown["result"]["api"]["url"]), [8])
        self.good("stop", "prod")
        self.exits(0, self.end(again))

    def test_a_rollback_serves_the_version_before(self):
        first = self.detached("run", ".", "--name", "prod", "--param", "by=3")
        self.good("stop", "prod")
        second = self.detached("run", ".", "--name", "prod", "--param", "by=5")
        self.assertEqual(infer(second["services"][0]["url"]), [20])
        back = self.detached("rollback", "prod")
        self.assertEqual((back["name"], self.show(back["run"])["params"]), ("prod", {"by": 3}))
        self.assertNotIn(back["run"], (first["run"], second["run"]))
        # It has taken over the listener and all traffic.
        self.assertEqual(back["services"], second["services"])
        self.assertEqual(infer(back["services"][0]["url"]), [12])
        self.until("the other version has ended", lambda: self.show(second["run"])["status"] == "succeeded")
        self.assertEqual(self.good("stop", "prod", "--json").lines(), [{"run": back["run"], "status": "succeeded"}])

    def test_a_version_that_a_rollback_serves_has_its_canary_when_it_is_deployed(self):
        self.write("careful.lua", SCRIPT.replace("port = 0", 'port = 0, canary = { 50, 100, every = "1h" }'))
        self.detached("run", "careful.lua", "--name", "prod", "--param", "by=3")
        self.detached("run", ".", "--name", "prod", "--param", "by=5")
        back = self.detached("rollback", "prod")
        self.assertEqual(self.show(back["run"])["rollover"]["steps"], 1)
        self.start("deploy", back["run"], "--name", "prod", "--detach")
        self.until("both have their part", lambda: sorted(
            service["percent"] or 0 for service in self.good("services", "--json").lines()) == [50, 50])

    def test_the_services_of_all_runs_are_listed_with_their_traffic_and_replicas(self):
        self.assertEqual(self.good("services").out, "")
        left = self.detached("run", ".", "--name", "prod")
        url = left["services"][0]["url"]
        for _ in range(5):
            self.assertEqual(infer(url), [8])
        (service,) = self.good("services", "--json").lines()
        (replica,) = service.pop("replicas")
        for varying in ("requests_per_second", "p50_ms", "p99_ms"):
            self.assertGreater(service.pop(varying), 0)
        self.assertGreaterEqual(service.pop("queue_ms"), 0)
        self.assertEqual(sum(bucket["requests"] for bucket in service.pop("latency")), 5)
        self.assertEqual(service, {
            "name": "prod", "service": "scale", "version": left["run"], "status": "serving", "url": url, "ready": True,
            "draining": False, "percent": 100, "requests": 5, "errors": 0, "refused": 0, "queued": 0, "running": 0, "access_log": None,
            "scaling": None})
        self.assertTrue(os.path.exists("/proc/%d" % replica.pop("pid")))
        self.assertEqual(replica, {"name": "scale", "status": "ready", "worker": "local", "gpus": []})
        first, second = self.good("services").out.splitlines()
        self.assertRegex(first, r"^prod/scale  %s  %s  1/1 replica  100%%  [0-9.]+/s  p50 .*ms, p99 .*ms, ready$" % (left["run"], url))
        self.assertRegex(second, r"^    scale  ready  process \d+  local$")
        self.good("stop", "prod")
        self.assertEqual(self.good("services", "--json").out, "")

    def test_the_latency_of_a_service_is_the_histogram_of_its_metrics(self):
        address = "127.0.0.1:%d" % unused_port()
        head = self.start("head", "--listen", address, "--jobs", "2")
        self.until("the head listens", lambda: os.path.exists(os.path.join(self.state, "socket")))
        left = self.detached("run", ".", "--name", "prod")
        url = left["services"][0]["url"]
        (service,) = self.good("services", "--json").lines()
        self.assertEqual([bucket["requests"] for bucket in service["latency"]], [0] * 17)
        for _ in range(50):
            self.assertEqual(infer(url), [8])
        for words in ([], ["--head", address, "--secret-file", os.path.join(self.state, "secret")]):
            (service,) = self.good("services", "--json", *words).lines()
            self.assertEqual(latency_of(service), counted_durations(url, left["run"]))
            self.assertEqual(sum(bucket["requests"] for bucket in service["latency"]), 50)
            self.assertEqual([bucket["up_to_ms"] for bucket in service["latency"]][-1], None)
        self.good("stop", "prod")
        head.send_signal(signal.SIGINT)
        self.exits(0, self.end(head))

    def test_each_replica_of_a_service_is_listed(self):
        self.write("pipeline.lua", SCRIPT.replace("port = 0", "port = 0, replicas = 2"))
        left = self.detached("run", ".", "--name", "prod")
        self.assertEqual(len(left["services"]), 1)

        def replicas():
            (service,) = self.good("services", "--json").lines()
            return [(each["name"], each["status"]) for each in service["replicas"] if each["pid"]]
        self.until("both are ready", lambda: replicas() == [("scale[0]", "ready"), ("scale[1]", "ready")])
        self.assertEqual(len(self.show("prod")["services"][0]["replicas"]), 2)
        self.assertIn("2/2 replicas", self.good("services").out)
        self.good("stop", "prod")

    def test_a_service_outlives_a_killed_process_for_its_lease(self):
        left = self.detached("run", ".", "--name", "prod", "--front-lease", "10m")
        url = left["services"][0]["url"]
        before = self.good("services", "--json").lines()[0]["replicas"][0]["pid"]
        os.kill(left["pid"], signal.SIGKILL)
        self.until("the state is free", self.is_free)
        self.assertEqual(infer(url), [8])
        (service,) = self.good("services", "--json").lines()
        self.assertEqual((service["status"], service["url"], service["replicas"][0]["pid"]), ("interrupted", url, before))
        first, _, third = self.good("services").out.splitlines()
        self.assertTrue(first.endswith(", interrupted, answers for its --front-lease"), first)
        self.assertEqual(third, "    no process executes its run: `flow resume %s` continues it" % left["run"])
        again = self.detached("resume", "prod")
        self.assertEqual((again["run"], again["services"]), (left["run"], left["services"]))
        self.assertEqual(infer(url), [8])
        self.assertEqual(self.good("services", "--json").lines()[0]["replicas"][0]["pid"], before)
        self.good("stop", "prod")

    def test_a_service_ends_with_its_lease(self):
        left = self.detached("run", ".", "--name", "prod", "--front-lease", "100ms")
        os.kill(left["pid"], signal.SIGKILL)

        def is_refused():
            try:
                infer(left["services"][0]["url"])
            except OSError:
                return True
            return False
        self.until("nothing serves any more", is_refused)
        self.until("nothing is listed any more", lambda: self.good("services", "--json").out == "")

    def test_the_first_version_of_a_name_has_none_before_it(self):
        left = self.detached("run", ".", "--name", "prod")
        self.exits(2, self.flow("rollback", "prod"), "there is no version of `prod` before the run " + left["run"])
        self.good("stop", "prod")

    def test_a_task_that_is_not_in_the_cache_is_named_and_nothing_is_served(self):
        self.write("pipeline.lua", SCRIPT.replace('"factor", function', '"factor", { cache = false }, function'))
        left = self.detached("run", ".", "--name", "prod")
        self.good("stop", "prod")
        for words in (["serve", "prod"], ["deploy", left["run"], "--name", "other"], ["serve", "prod", "--detach"]):
            self.exits(2, self.flow(*words), "only the services of the run %s may run" % left["run"],
                       "the cache does not have 1 of its tasks:\n  `factor`: cache = false")
        self.assertEqual(len(self.runs()), 1)

        self.write("pipeline.lua", 'local flow = require "flow"\nreturn flow.pipeline("plain", {}, function() return 1 end)')
        self.good("run", ".", "--name", "plain")
        self.exits(2, self.flow("serve", "plain"), "has no service that could be served")

    def test_a_client_of_a_head_leaves_its_run_there(self):
        head = self.start("head", "--listen", "127.0.0.1:%d" % unused_port(), "--jobs", "2")
        self.until("the head listens", lambda: os.path.exists(os.path.join(self.state, "socket")))
        left = self.detached("run", ".", "--name", "prod")
        self.assertEqual((left["pid"], left["log"]), (None, None))
        self.assertEqual(infer(left["services"][0]["url"]), [8])
        self.assertEqual(self.show("prod")["status"], "serving")
        self.exits(2, self.flow("run", ".", "--detach", "--out", "copy"), "leave --out out")
        self.assertEqual(self.good("stop", "prod").out, "stopped %s: succeeded\n" % left["run"])
        head.send_signal(signal.SIGINT)
        self.exits(0, self.end(head))

    def test_a_detached_run_beside_another_flow_survives_it(self):
        self.write("hold.lua", HOLD + '''
return flow.pipeline("held", {}, function() return hold("%s", "a") end)''' % self.path("gate"))
        writer = self.start("run", "hold.lua")
        self.until_holds("a")
        left = self.detached("run", ".", "--name", "prod")
        self.assertEqual(infer(left["services"][0]["url"]), [8])
        self.kill(writer)

        def serves():
            services = self.show("prod").get("services", [])
            return services and services[0]["url"]
        self.until("the process in the background has taken the state over",
                   lambda: not self.is_free() and self.show("prod")["status"] == "serving" and serves())
        self.assertEqual(infer(self.show("prod")["services"][0]["url"]), [8])
        self.good("stop", "prod")

    def serve_at_another_process(self):
        """The writer, and the command whose run serves there."""
        self.write("hold.lua", HOLD + '''
return flow.pipeline("held", {}, function() return hold("%s", "a") end)''' % self.path("gate"))
        writer = self.start("run", "hold.lua", "--log-level", "info", "--log-file", self.path("log"))
        self.until_holds("a")
        client = self.start("run", ".", "--name", "prod", "--front-lease", "10m")
        self.until("it serves", lambda: any(run["status"] == "serving" for run in self.runs()))
        return writer, client

    def test_a_run_that_serves_outlives_the_death_of_its_client(self):
        writer, client = self.serve_at_another_process()
        url, pid = self.show("prod")["url"], self.good("services", "--json").lines()[0]["replicas"][0]["pid"]
        self.kill(client)
        self.until("the writer has noticed it", lambda: "client has died, its run continues" in self.read("log"))
        self.assertEqual((self.show("prod")["status"], infer(url)), ("serving", [8]))
        # It is a detached run now: the next process goes on with it too.
        self.kill(writer)
        self.write("plain.lua", 'local flow = require "flow"\nreturn flow.pipeline("plain", {}, function() return 1 end)')
        self.good("run", "plain.lua")
        self.until("it serves again", lambda: self.show("prod")["status"] == "serving" and self.show("prod").get("url") == url)
        self.assertEqual(self.good("services", "--json").lines()[0]["replicas"][0]["pid"], pid)
        self.assertEqual(infer(url), [8])
        self.assertEqual(self.good("stop", "prod").out, "stopped %s: succeeded\n" % self.show("prod")["run"])
        self.open("gate")

    def test_a_run_with_open_tasks_is_interrupted_by_the_death_of_its_client(self):
        writer, client = self.serve_at_another_process()
        wait = 'local wait = flow.task("wait", function(ctx) ctx:wait("go") end)\nlocal scale'
        self.write("both.lua", SCRIPT.replace("local scale", wait).replace("scale(factor(p.by))", "{ scale(factor(p.by)), wait() }"))
        other = self.start("run", "both.lua", "--name", "both")
        self.until("its service is up", lambda: any(run["name"] == "both" and run.get("url") for run in self.runs()))
        self.kill(other)
        self.until("it is interrupted", lambda: self.show("both")["status"] == "interrupted")
        client.send_signal(signal.SIGHUP)  # of a closed terminal, which ends a run as Ctrl-C does
        self.exits(0, self.end(client))
        self.assertEqual(self.show("prod")["status"], "succeeded")
        self.open("gate")
        self.exits(0, self.end(writer))

    def test_gc_keeps_the_serving_version_and_the_one_before_it(self):
        first = self.detached("run", ".", "--name", "prod", "--param", "by=3")
        self.good("stop", "prod")
        for number in (5, 6):
            self.write("plain.lua", 'local flow = require "flow"\nreturn flow.pipeline("plain", {}, function() return %d end)' % number)
            self.good("run", "plain.lua")
        now = self.detached("run", ".", "--name", "prod", "--param", "by=4")
        self.good("gc", "--keep", "0")
        self.assertEqual([run["run"] for run in self.runs()], [first["run"], now["run"]])
        self.good("stop", "prod")
        self.good("gc", "--keep", "0")
        self.assertEqual(self.runs(), [])


if __name__ == "__main__":
    main()
