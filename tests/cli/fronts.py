#!/usr/bin/env python3
"""Fronts of services whose runs end, come back or are refused, and the log of a run in the background.

usage: fronts.py --flow BIN [TEST...]
"""
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main, unused_port  # noqa: E402

SCRIPT = r'''
local flow = require "flow"
local scale = flow.service("scale", { OPTIONS }, function(ctx)
  return { predict = function(inputs) return { y = (inputs.x or inputs.z) * FACTOR } end }
end)
return flow.pipeline("scaled", {}, function() return scale() end)
'''
PATH = "/v2/models/scale/infer"
MIB = 1 << 20


def infer(url, name="x", factor_of=4):
    """The status, and the result."""
    body = json.dumps({"inputs": [{"name": name, "shape": [1, 1], "datatype": "FP32", "data": [factor_of]}]}).encode()
    try:
        with urllib.request.urlopen(url + PATH, body, timeout=60) as answer:
            return answer.status, json.load(answer)["outputs"][0]["data"][0]
    except urllib.error.HTTPError as error:
        return error.code, None


def is_listening(url):
    host, port = url.rsplit("/", 1)[1].split(":")
    try:
        socket.create_connection((host, int(port)), timeout=60).close()
    except OSError:
        return False
    return True


class Fronts(Place):
    def clean(self):
        for run in self.runs() if os.path.exists(self.state) else []:
            if run["status"] in ("running", "serving", "waiting"):
                self.flow("stop", run["run"], "--grace", "1s")
        super().clean()

    def script(self, options="port = 0", factor=2, name="pipeline.lua"):
        self.write(name, SCRIPT.replace("OPTIONS", options).replace("FACTOR", str(factor)))

    def kill_flow(self, left):
        os.kill(left["pid"], signal.SIGKILL)
        self.until("the state is free", self.is_free)

    def test_a_run_that_is_resumed_with_new_code_has_its_new_options(self):
        self.script('port = 0, timeout = "60s"')
        left = self.detached("run", ".", "--name", "prod", "--front-lease", "10m")
        url = left["services"][0]["url"]
        self.assertEqual(infer(url), (200, 8))
        self.kill_flow(left)
        self.script('port = 0, timeout = "50s", batch = { max = 7 }, inputs = { z = { "FP32", { -1, 1 } } }', factor=3)
        again = self.detached("resume", "prod", "--code", "new", "--front-lease", "10m")
        self.assertEqual((again["run"], again["services"][0]["url"]), (left["run"], url))
        self.assertEqual(infer(url, "z"), (200, 12))
        self.assertEqual(infer(url, "x")[0], 400)
        with urllib.request.urlopen(url + "/v2/models/scale/config", timeout=60) as answer:
            config = json.load(answer)
        self.assertEqual(config["max_batch_size"], 7)
        self.assertEqual([each["name"] for each in config["input"]], ["z"])

    def test_a_run_that_is_resumed_with_another_address_listens_there(self):
        self.script("port = 0")
        left = self.detached("run", ".", "--name", "prod", "--front-lease", "10m")
        self.kill_flow(left)
        port = unused_port()
        self.script("port = %d" % port, factor=3)
        again = self.detached("resume", "prod", "--code", "new", "--front-lease", "10m")
        self.assertEqual(again["services"][0]["url"], "http://127.0.0.1:%d" % port)
        self.assertEqual(infer(again["services"][0]["url"]), (200, 12))
        self.until("the old address is free", lambda: not is_listening(left["services"][0]["url"]))

    def test_new_options_count_also_if_the_function_is_the_same(self):
        port, other = unused_port(), unused_port()
        self.script("port = %d" % port)
        self.write("keys", "secret\n")
        left = self.detached("run", ".", "--name", "prod", "--front-lease", "10m")
        options = 'inputs = { z = { "FP32", { -1, 1 } } }, batch = { max = 7 }'
        self.kill_flow(left)
        self.script("port = %d, %s" % (port, options))
        left = self.detached("resume", "prod", "--code", "new", "--front-lease", "10m")
        url = left["services"][0]["url"]
        self.assertEqual((infer(url, "z"), infer(url, "x")[0]), ((200, 8), 400))
        self.kill_flow(left)
        self.script('port = %d, %s, keys = flow.file("keys")' % (port, options))
        left = self.detached("resume", "prod", "--code", "new", "--front-lease", "10m")
        self.assertEqual(infer(url, "z")[0], 401)
        self.kill_flow(left)
        self.script("port = %d" % other)
        left = self.detached("resume", "prod", "--code", "new", "--front-lease", "10m")
        self.assertEqual(left["services"][0]["url"], "http://127.0.0.1:%d" % other)
        self.assertEqual(infer(left["services"][0]["url"]), (200, 8))
        self.until("the old port is free", lambda: not is_listening(url))

    def test_a_service_that_new_code_leaves_as_it_is_goes_on_with_its_processes(self):
        self.script("port = 0, replicas = 2")
        left = self.detached("run", ".", "--name", "prod", "--front-lease", "10m")
        processes = self.replicas()
        self.assertEqual(len(processes), 2)
        self.kill_flow(left)
        with open(self.path("pipeline.lua"), "a") as script:
            script.write("-- the end\n")
        again = self.detached("resume", "prod", "--code", "new", "--front-lease", "10m")
        self.assertEqual(self.replicas(), processes)
        self.assertEqual(infer(again["services"][0]["url"]), (200, 8))

    def replicas(self):
        """The processes of the only service, of which all answer."""
        (service,) = self.good("services", "--json").lines()
        self.assertTrue(service["ready"])
        return sorted(replica["pid"] for replica in service["replicas"])

    def test_no_replica_of_the_old_code_answers_beside_the_new_code(self):
        factor = 2
        self.script("port = 0", factor)
        left = self.detached("run", ".", "--name", "prod", "--front-lease", "10m")
        for replicas in 2, 3, 1:
            before = self.replicas()
            self.kill_flow(left)
            factor += 1
            self.script("port = 0, replicas = %d" % replicas, factor)
            left = self.detached("resume", "prod", "--code", "new", "--front-lease", "10m")
            self.assertEqual([infer(left["services"][0]["url"]) for _ in range(30)], [(200, 4 * factor)] * 30)
            self.until("all replicas are there", lambda: len(self.replicas()) == replicas)
            self.assertFalse(set(self.replicas()) & set(before))
            self.until("the old processes are reaped",
                       lambda: not any(os.path.exists("/proc/%d" % pid) for pid in before))

    def test_a_service_that_new_code_renames_leaves_its_port(self):
        port = unused_port()
        self.script("port = %d" % port)
        left = self.detached("run", ".", "--name", "prod", "--front-lease", "10m")
        processes = self.serving()
        self.kill_flow(left)
        self.write("pipeline.lua", self.read("pipeline.lua").replace('service("scale"', 'service("other"'))
        again = self.detached("resume", "prod", "--code", "new", "--front-lease", "10m")
        self.assertEqual(again["services"], [{"service": "other", "url": "http://127.0.0.1:%d" % port}])
        self.assertEqual([each["service"] for each in self.good("services", "--json").lines()], ["other"])
        self.until("the processes of the old service have ended",
                   lambda: not any(os.path.exists("/proc/%d" % pid) for pid in processes))

    def test_new_code_without_a_service_keeps_the_processes_of_the_others(self):
        text = SCRIPT.replace("return scale()", "return { other(), scale() }").replace("OPTIONS", "port = 0")
        self.write("pipeline.lua", text.replace("FACTOR", "2").replace("return flow.pipeline", '''
local other = flow.service("other", { port = 0 }, function(ctx) return { predict = print } end)
return flow.pipeline'''))
        left = self.detached("run", ".", "--name", "prod", "--front-lease", "10m")
        pids = {each["service"]: each["replicas"][0]["pid"] for each in self.good("services", "--json").lines()}
        self.kill_flow(left)
        self.script()
        again = self.detached("resume", "prod", "--code", "new", "--front-lease", "10m")
        self.assertEqual(self.replicas(), [pids["scale"]])
        self.until("the process of the other one is reaped", lambda: not os.path.exists("/proc/%d" % pids["other"]))
        self.kill_flow(again)  # it goes on by its new place in the plan
        self.detached("resume", "prod", "--front-lease", "10m")
        self.assertEqual(self.replicas(), [pids["scale"]])
        self.assertEqual(infer(again["services"][0]["url"]), (200, 8))

    def test_the_front_of_a_run_that_is_cancelled_after_its_engine_died_ends(self):
        self.script()
        left = self.detached("run", ".", "--name", "prod", "--front-lease", "10h")
        url = left["services"][0]["url"]
        processes = self.serving()
        self.kill_flow(left)
        self.assertEqual(infer(url), (200, 8))
        self.good("cancel", "prod")
        self.until("nothing listens", lambda: not is_listening(url))
        self.until("its processes have ended",
                   lambda: not any(os.path.exists("/proc/%d" % pid) for pid in processes))
        self.assertEqual(self.good("services", "--json").out, "")

    def test_a_version_that_is_cancelled_after_its_engine_died_leaves_the_front(self):
        self.script()
        first = self.detached("run", ".", "--name", "prod", "--front-lease", "10h")
        url = first["services"][0]["url"]
        self.script('port = 0, canary = { 50, 100, every = "1h" }', factor=3)
        second = self.start("run", ".", "--name", "prod", "--front-lease", "10h")

        def versions():
            return {each["version"]: each["percent"] or 0 for each in self.good("services", "--json").lines()}
        self.until("the canary has its part", lambda: sorted(versions().values()) == [50, 50])
        second_run = max(versions())
        second.kill()
        self.kill_flow(first)
        self.until("the version before has all traffic", lambda: versions() == {first["run"]: 100, second_run: 0})
        self.good("cancel", second_run)
        self.until("the new version has left", lambda: versions() == {first["run"]: 100})
        again = self.detached("resume", first["run"], "--front-lease", "10h")
        self.assertEqual(again["services"][0]["url"], url)
        self.assertEqual([infer(url) for _ in range(10)], [(200, 8)] * 10)
        self.assertEqual(versions(), {first["run"]: 100})

    def test_a_version_that_is_not_resumed_leaves_the_front_with_its_lease(self):
        self.script()
        first = self.detached("run", ".", "--name", "prod", "--front-lease", "2s")
        self.script('port = 0, canary = { 50, 100, every = "1h" }', factor=3)
        second = self.start("run", ".", "--name", "prod", "--front-lease", "2s")

        def versions():
            return {each["version"]: each["percent"] or 0 for each in self.good("services", "--json").lines()}
        self.until("the canary has its part", lambda: sorted(versions().values()) == [50, 50])
        second_run = max(versions())
        second.kill()
        self.kill_flow(first)
        again = self.detached("resume", first["run"])
        self.until("only one version is left", lambda: list(versions()) == [first["run"]])
        self.assertEqual(infer(again["services"][0]["url"]), (200, 8))
        self.assertEqual(self.show(second_run)["status"], "interrupted")

    def test_the_log_of_a_run_in_the_background_is_bounded(self):
        self.write("pipeline.lua", r'''
local flow = require "flow"
local noisy = flow.task("noisy", function(ctx)
  local line = ("x"):rep(1000)
  for i = 1, 40000 do print(line) end
  return 1
end)
local scale = flow.service("scale", { port = 0 }, function(ctx, n)
  return { predict = function(inputs) return { y = inputs.x * n } end }
end)
return flow.pipeline("scaled", {}, function() return scale(noisy()) end)
''')
        left = self.detached("run", ".", "--logs")
        log = left["log"]
        self.until("the log is renamed", lambda: os.path.exists(log + ".1"))
        self.assertEqual(infer(left["services"][0]["url"]), (200, 4))
        self.assertEqual(sorted(name for name in os.listdir(self.state) if name.startswith("detached")),
                         ["detached.log", "detached.log.1"])

    def test_two_services_at_one_port_are_refused(self):
        port = unused_port()
        self.write("pipeline.lua", r'''
local flow = require "flow"
local function service(name)
  return flow.service(name, { port = %d }, function(ctx) return { predict = print } end)
end
local a, b = service("a"), service("b")
return flow.pipeline("two", {}, function() return { a(), b() } end)
''' % port)
        self.exits(2, self.flow("run", "."), "the service `b` has port %d (`listen`), at which the service `a` listens too" % port)
        self.assertEqual(self.runs(), [])

    def test_a_service_with_a_cache_is_refused(self):
        self.script("port = 0, cache = true")
        self.exits(2, self.flow("run", "."), "the option `cache`", "a service never counts as cached")

    def test_files_of_tls_that_cannot_be_used_are_refused_before_the_run(self):
        def certificate(name):
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2",
                            "-keyout", self.path(name + ".key"), "-out", self.path(name + ".pem")],
                           check=True, stderr=subprocess.DEVNULL)
        certificate("server")
        certificate("other")
        self.script('port = 0, tls = { cert = "server.pem", key = "other.key" }')
        self.exits(2, self.flow("run", "."), "has `tls`", self.path("other.key"))
        self.write("server.pem", "nothing")
        self.script('port = 0, tls = { cert = "server.pem", key = "server.key" }')
        self.exits(2, self.flow("run", "."), "has `tls`", self.path("server.pem"))
        self.assertEqual(self.runs(), [])

    def refused_version(self, options, *texts, name="new.lua"):
        if options is not None:
            self.script(options, name=name)
        self.exits(2, self.flow("run", name, "--name", "prod"), *texts)

    def test_a_version_that_would_listen_or_answer_in_another_way_is_refused(self):
        port = unused_port()
        self.script("port = 0")
        left = self.detached("run", ".", "--name", "prod")
        self.refused_version('listen = "127.0.0.2:0"', "is served at 127.0.0.1:", "listens at a free port of 127.0.0.2")
        self.refused_version("port = 0, grpc = %d" % port, "is served without `grpc` by the run " + left["run"],
                             "the new version listens with `grpc` at port %d" % port)
        self.write("new.lua", r'''
local flow = require "flow"
local scale = flow.service("scale", { port = 0, ready = "/", command = [[exec python3 -m http.server {port}]] })
return flow.pipeline("scaled", {}, function() return scale() end)
''')
        self.refused_version(None, "is served with a function by the run " + left["run"], "the server of a `command`")
        self.assertEqual(len(self.runs()), 1)
        self.assertEqual(infer(left["services"][0]["url"]), (200, 8))


if __name__ == "__main__":
    main()
