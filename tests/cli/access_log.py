#!/usr/bin/env python3
"""The log of a service's requests, and the traces that its clients send.

usage: access_log.py --flow BIN [TEST...]
"""
import http.client
import json
import os
import re
import socket
import struct
import sys
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

SCRIPT = r'''
local flow = require "flow"
local scale = flow.service("scale", { port = 0, OPTIONS }, function(ctx)
  return { predict = function(inputs, request)
    local trace = request.trace_id or "none"
    print("predicts for " .. trace .. " " .. tostring(request.id) .. " " .. request.rows)
    if inputs.boom then error("boom") end
    return { y = inputs.x * 2 }
  end }
end)
return flow.pipeline("scaled", {}, function() return scale() end)
'''
SERVER = r'''
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = str(self.headers.get("traceparent")).encode()
        self.send_response(503 if self.path == "/busy" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
'''
WRAPPED = r'''
local flow = require "flow"
local web = flow.service("web", { port = 0, access_log = true, ready = "/health",
  command = [[exec python3 server.py {port}]] })
return flow.pipeline("wrapped", {}, function() return web() end)
'''
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = "00-%s-00f067aa0ba902b7-01" % TRACE
PATH = "/v2/models/scale/infer"


def body(name="x"):
    return json.dumps({"id": "seven", "inputs": [
        {"name": name, "shape": [1], "datatype": "FP32", "data": [4]}]})


class AccessLog(Place):
    def clean(self):
        for run in self.runs() if os.path.exists(self.state) else []:
            if run["status"] in ("running", "serving"):
                self.flow("stop", run["run"], "--grace", "1s")
        super().clean()

    def serve(self, text, *words, **env):
        """A connection to the service of a run in the background."""
        self.write("pipeline.lua", text)
        (left,) = self.good("run", ".", "--detach", "--json", *words, **env).lines()
        self.run_id = left["run"]
        url = urllib.parse.urlsplit(left["services"][0]["url"])
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
        self.addCleanup(connection.close)
        return connection

    def ask(self, connection, method, path, text=None, **headers):
        connection.request(method, path, text, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def service(self):
        (service,) = self.good("services", "--json").lines()
        return service

    def requests(self, count):
        """The lines of the log, when there are so many."""
        path = self.service()["access_log"]
        self.assertTrue(os.path.isabs(path))

        def lines():
            return self.read(path).splitlines() if os.path.exists(path) else []
        self.until("there are %d lines" % count, lambda: len(lines()) >= count)
        self.assertEqual(len(lines()), count)
        return [json.loads(line) for line in lines()]

    def test_each_request_has_a_line_and_its_trace_reaches_predict_and_the_log(self):
        connection = self.serve(SCRIPT.replace("OPTIONS", "access_log = true, keys = flow.env('API_KEYS')"),
                                API_KEYS="a-secret-key")
        key = {"Authorization": "Bearer a-secret-key"}
        self.assertEqual(self.ask(connection, "POST", PATH + "?token=hidden", body(), traceparent=TRACEPARENT, **key)[0], 200)
        self.assertEqual(self.ask(connection, "POST", PATH, body("boom"), traceparent=TRACEPARENT, **key)[0], 500)
        self.assertEqual(self.ask(connection, "POST", PATH, body(), traceparent="00-nonsense", **key)[0], 200)
        self.assertEqual(self.ask(connection, "POST", PATH, body())[0], 401)
        good, failed, untraced, refused = self.requests(4)
        self.assertRegex(good.pop("time"), r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        self.assertGreaterEqual(good.pop("duration_ms"), good.pop("queue_ms"))
        self.assertGreater(good.pop("bytes_out"), 0)
        self.assertEqual(good, {
            "protocol": "http", "client": "127.0.0.1", "method": "POST", "path": PATH, "status": 200, "batch_rows": 1,
            "bytes_in": len(body()), "version": self.run_id, "replica": "scale", "trace": TRACE, "broken": False})
        self.assertEqual((failed["status"], failed["trace"]), (500, TRACE))
        self.assertEqual((untraced["status"], untraced["trace"]), (200, None))
        self.assertEqual((refused["status"], refused["version"], refused["path"]), (401, None, PATH))
        for text in ("a-secret-key", "hidden", "FP32"):
            self.assertNotIn(text, self.read(self.service()["access_log"]))
        logs = self.good("logs", self.run_id, "scale").out
        self.assertIn("predicts for %s seven 1" % TRACE, logs)
        self.assertIn("predicts for none seven 1", logs)
        self.assertRegex(logs, r"request `seven` of the trace %s failed: .*boom" % TRACE)

    def leave_in_body(self, connection, method, path):
        """Clients that leave before they have sent the whole body: in the orderly way, and by a reset."""
        head = "%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nbegin" % (method, path)
        for is_reset in (False, True):
            with socket.create_connection((connection.host, connection.port), timeout=60) as client:
                client.sendall(head.encode())
                yield  # until the begin of the body has arrived
                if is_reset:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def test_a_client_that_leaves_during_its_upload_is_logged_as_such(self):
        connection = self.serve(SCRIPT.replace("OPTIONS", "access_log = true"))
        for _ in self.leave_in_body(connection, "POST", PATH):
            # Its bytes have been read: the front answers requests in the order in which it sees them.
            self.assertEqual(self.ask(connection, "GET", "/v2/health/live")[0], 200)
        lines = [line for line in self.requests(4) if line["path"] == PATH]
        self.assertEqual([(line["status"], line["method"]) for line in lines], [(499, "POST")] * 2)

    def test_a_client_that_leaves_during_an_upload_to_a_server_is_logged_as_such(self):
        self.write("server.py", SERVER)
        connection = self.serve(WRAPPED.replace("server.py", self.path("server.py")))
        for _ in self.leave_in_body(connection, "POST", "/a"):
            self.assertEqual(self.ask(connection, "GET", "/flow/live")[0], 200)
        lines = [line for line in self.requests(4) if line["path"] == "/a"]
        self.assertEqual([(line["status"], line["method"]) for line in lines], [(499, "POST")] * 2)

    def test_the_log_is_shown_and_only_its_owner_can_read_it(self):
        connection = self.serve(SCRIPT.replace("OPTIONS", "access_log = true"))
        self.assertEqual(self.ask(connection, "GET", "/v2/health/ready")[0], 200)
        self.requests(1)
        path = self.service()["access_log"]
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        self.assertTrue(path.startswith(os.path.join(self.state, "fronts") + "/"))
        self.assertIn("access log " + path, self.good("services").out)
        self.assertRegex(self.good("show", self.run_id).out, r"access log +" + re.escape(path))
        shown = self.show(self.run_id)["services"][0]
        self.assertEqual(shown["access_log"], path)
        self.assertEqual(shown["replicas"][0]["pid"], self.service()["replicas"][0]["pid"])
        self.assertIsNotNone(shown["replicas"][0]["pid"])

    def test_without_the_option_nothing_is_logged(self):
        connection = self.serve(SCRIPT.replace("OPTIONS", ""))
        self.assertEqual(self.ask(connection, "POST", PATH, body())[0], 200)
        self.assertIsNone(self.service()["access_log"])
        self.assertNotIn("access log", self.good("services").out)
        self.assertEqual([name for _, _, names in os.walk(os.path.join(self.state, "fronts")) for name in names
                          if name.startswith("access")], [])

    def test_a_part_of_the_requests_is_logged_and_every_failure(self):
        connection = self.serve(SCRIPT.replace("OPTIONS", "access_log = 1e-9"))
        for _ in range(20):
            self.assertEqual(self.ask(connection, "POST", PATH, body())[0], 200)
        self.assertEqual(self.ask(connection, "POST", PATH, body("boom"))[0], 500)
        (failed,) = self.requests(1)
        self.assertEqual(failed["status"], 500)
        self.write("pipeline.lua", SCRIPT.replace("OPTIONS", "access_log = 2"))
        self.exits(2, self.flow("plan", "."), "`access_log`", "the part of the requests that is logged, 0 to 1")

    def test_forwarded_requests_are_logged_and_their_traces_are_passed_on(self):
        self.write("server.py", SERVER)
        connection = self.serve(WRAPPED.replace("server.py", self.path("server.py")))
        self.assertEqual(self.ask(connection, "GET", "/a?b=c", traceparent=TRACEPARENT), (200, TRACEPARENT))
        self.assertEqual(self.ask(connection, "GET", "/a", traceparent="00-nonsense"), (200, "None"))
        self.assertEqual(self.ask(connection, "GET", "/busy"), (503, "None"))
        first, second, busy = self.requests(3)
        self.assertEqual({name: first[name] for name in ("path", "status", "trace", "version", "replica", "batch_rows", "bytes_out")},
                         {"path": "/a", "status": 200, "trace": TRACE, "version": self.run_id, "replica": "web",
                          "batch_rows": None, "bytes_out": len(TRACEPARENT)})
        self.assertIsNotNone(first["queue_ms"])
        self.assertEqual((second["status"], second["trace"]), (200, None))
        self.assertEqual(busy["status"], 503)


if __name__ == "__main__":
    main()
