#!/usr/bin/env python3
"""The options of a service from the script to the run: what is refused, and that keys stay secret.

usage: service_options.py --flow BIN [TEST...]
"""
import http.client
import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

SCRIPT = r'''
local flow = require "flow"
local web = flow.service("web", { OPTIONS }, function(ctx)
  BODY
  return { predict = function(inputs) return { y = inputs.x } end }
end)
return flow.pipeline("serving", {}, function() return { web = web() } end)
'''
FIRST, SECOND = "first-key-4711", "second-key-0815"


class ServiceOptions(Place):
    def script(self, options, body=""):
        self.write("pipeline.lua", SCRIPT.replace("OPTIONS", options).replace("BODY", body))

    def plan(self, *words, **env):
        return self.flow("plan", ".", *words, **env)

    def files_with(self, text):
        """The files of the state that contain the text."""
        found = []
        for folder, _, names in os.walk(self.state):
            for name in names:
                path = os.path.join(folder, name)
                with open(path, "rb") as file:
                    if text.encode() in file.read():
                        found.append(path)
        return found

    def test_a_service_that_other_machines_reach_needs_tls_and_keys(self):
        self.script('listen = "0.0.0.0:0"')
        for verb in ("plan", "run"):
            self.exits(2, self.flow(verb, "."), "pipeline.lua:3: task `web` listens on 0.0.0.0", "has no `tls` and `keys`",
                       "`insecure = true`")
        self.script('listen = "0.0.0.0:0", insecure = true')
        self.exits(0, self.plan())

    def test_a_service_has_another_port_for_grpc_and_shows_it_in_its_log(self):
        self.script("port = 8080, grpc = 8080")
        self.exits(2, self.plan(), "pipeline.lua:3: task `web`: the option `grpc` has port 8080, at which the service listens for HTTP")
        self.script("port = 0, grpc = 0")
        done = self.flow("run", ".", "--serve-for", "0s")
        log = self.good("logs", "last", "web").out
        if done.code == 0:
            self.assertRegex(log, r"gRPC: 127\.0\.0\.1:[1-9][0-9]*")
        else:
            self.assertIn("cannot listen for gRPC: this flow was built without it. Install libgrpc++-dev", done.err)

    def test_missing_files_and_variables_are_errors_before_the_run(self):
        self.script('port = 0, tls = { cert = "server.pem", key = "tls/server.key" }, keys = flow.env("API_KEYS")')
        done = self.exits(2, self.flow("run", "."), "(`tls.cert`)", "needs the environment variable API_KEYS (`keys`), which is not set")
        self.assertIn("needs the file `%s` (`tls.key`)" % self.path("tls", "server.key"), done.err)
        self.assertEqual(self.runs(), [])
        self.assertIn("a run with these options is rejected", self.exits(0, self.plan()).out + self.plan().err)
        self.script('port = 0, keys = flow.file("keys.txt")')
        self.exits(2, self.flow("run", "."), "needs the file `%s` (`keys`)" % self.path("keys.txt"))

    def test_keys_of_a_variable_are_neither_stored_nor_logged(self):
        self.script('port = 0, keys = flow.env("API_KEYS")',
                    'print("has", os.getenv("API_KEYS")) ctx:log("second " .. os.getenv("API_KEYS"):match(",(.*)"))')
        self.good("run", ".", "--serve-for", "0s", "--log-level", "debug", "--log-file", self.path("log"),
                  API_KEYS="%s,%s" % (FIRST, SECOND))
        self.assertIn("second ***", self.good("logs", "last", "web").out)
        for key in (FIRST, SECOND):
            self.assertEqual(self.files_with(key), [])
            self.assertNotIn(key, self.read("log"))

    def test_keys_of_a_file_are_neither_stored_nor_logged(self):
        self.write("keys.txt", FIRST + "\n" + SECOND + "\n")
        self.script('port = 0, keys = flow.file("keys.txt")', 'ctx:log("the key is first-key-" .. 4711)')
        self.good("run", ".", "--serve-for", "0s")
        self.assertIn("the key is ***", self.good("logs", "last", "web").out)
        for key in (FIRST, SECOND):
            self.assertEqual(self.files_with(key), [])

    def certificate(self):
        """Writes server.pem and server.key, of localhost."""
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                        "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                        "-keyout", self.path("server.key"), "-out", self.path("server.pem")], check=True, capture_output=True)

    def serve(self, **env):
        """The process of a run that serves, and the parts of its URL."""
        process = self.start("run", ".", "--serve-for", "600s", **env)
        self.until("it serves", lambda: any(each.get("url") for each in self.runs()))
        return process, urllib.parse.urlsplit(self.show()["url"])

    def ask(self, connection, path, **headers):
        """The status of a GET request."""
        try:
            connection.request("GET", path, headers=headers)
            return connection.getresponse().status
        finally:
            connection.close()

    def test_a_service_with_tls_and_keys_answers_callers_that_have_a_key(self):
        self.certificate()
        self.script('listen = "127.0.0.1:0", tls = { cert = "server.pem", key = "server.key" }, keys = flow.env("API_KEYS")')
        run, url = self.serve(API_KEYS=" %s, %s" % (FIRST, SECOND))
        self.assertEqual((url.scheme, url.hostname), ("https", "127.0.0.1"))
        trust = ssl.create_default_context(cafile=self.path("server.pem"))
        connection = http.client.HTTPSConnection(url.hostname, url.port, timeout=60, context=trust)
        statuses = [self.ask(connection, "/v2/models/web", **headers) for headers in (
            {}, {"Authorization": "Bearer " + FIRST}, {"Authorization": "Bearer " + SECOND},
            {"Authorization": "Bearer %s, %s" % (FIRST, SECOND)}, {"Authorization": "Bearer wrong"})]
        self.assertEqual(statuses, [401, 200, 200, 401, 401])
        self.assertEqual(self.ask(connection, "/v2/health/ready"), 200)

        # The keys are those of the process that resumes the run.
        self.kill(run)
        self.exits(2, self.flow("resume", "last"), "needs the environment variable API_KEYS (`keys`), which is not set")
        self.start("resume", "last", "--serve-for", "600s", API_KEYS="third-key-1234")
        self.until("it serves", lambda: any(each.get("url") for each in self.runs()))
        connection.port = urllib.parse.urlsplit(self.show()["url"]).port
        self.assertEqual([self.ask(connection, "/v2", Authorization="Bearer " + key) for key in (FIRST, "third-key-1234")],
                         [401, 200])

    def test_a_service_answers_to_its_address_and_its_hosts_only(self):
        self.script('listen = "127.0.0.2:0", hosts = { "Models.Example" }')
        _, url = self.serve()
        self.assertEqual((url.scheme, url.hostname), ("http", "127.0.0.2"))
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
        statuses = [self.ask(connection, "/v2", Host=host) for host in ("models.example", "other.example", "localhost")]
        self.assertEqual(statuses, [200, 403, 200])

    def test_declared_tensors_are_in_the_metadata_and_other_requests_are_refused(self):
        self.script('port = 0, inputs = { x = { "FP32", { -1, 2 } } }, outputs = { y = { "FP32", { -1, 2 } } }')
        _, url = self.serve()
        with urllib.request.urlopen(url.geturl() + "/v2/models/web", timeout=60) as answer:
            shown = json.load(answer)
        self.assertEqual([shown["inputs"], shown["outputs"]],
                         [[{"name": name, "datatype": "FP32", "shape": [-1, 2]}] for name in ("x", "y")])

        def infer(name, shape):
            size = shape[0] * shape[1]
            tensor = {"name": name, "shape": shape, "datatype": "FP32", "data": [0.5] * size}
            try:
                with urllib.request.urlopen(url.geturl() + "/v2/models/web/infer", json.dumps({"inputs": [tensor]}).encode(),
                                            timeout=60) as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                return error.code
        self.assertEqual([infer("x", [3, 2]), infer("x", [3, 3]), infer("z", [3, 2])], [200, 400, 400])

    def test_replicas_scale_within_their_bounds_and_the_warm_up_request_has_the_inputs(self):
        self.script("port = 0, replicas = { min = 1, max = 8 }")
        self.exits(0, self.plan())
        self.script("port = 0, replicas = { min = 3, max = 2 }")
        self.exits(2, self.plan(), "pipeline.lua:3: task `web`: the option `replicas`")
        inputs = 'port = 0, inputs = { x = { "FP32", { -1, 2 } } }, warmup = { x = flow.zeros { 1, %d } }'
        self.script(inputs % 3)
        self.exits(2, self.flow("run", "."), "has the `warmup` tensor `x` of shape { 1, 3 }, but `inputs` declares { -1, 2 }")
        self.script(inputs % 2)
        self.exits(0, self.plan())

    def test_the_configuration_shows_how_many_requests_may_wait(self):
        self.write("flow.toml", '[tasks."*"]\nqueue = "slow"\n')
        self.script("port = 0, queue = 7")
        explained = self.good("plan", ".", "--explain-config", "--json").lines()
        shown = [each for each in explained if each.get("task") == "web" and each["option"] == "queue"]
        self.assertEqual([(each["value"], each["origin"]) for each in shown], [(7, "script pipeline.lua:3")])


if __name__ == "__main__":
    main()
