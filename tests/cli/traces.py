#!/usr/bin/env python3
"""Runs as traces of OpenTelemetry: what a collector gets, decoded by OpenTelemetry's own classes, and collectors that fail.

Needs PyPI's opentelemetry-proto, which it installs next to the build; exits with 77 where that is not possible.

usage: traces.py --flow BIN [TEST...]
"""
import http.server
import json
import os
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
from packages import python_with_packages  # noqa: E402
from place import Place, main  # noqa: E402

IMPORTS = "import opentelemetry.proto.collector.trace.v1.trace_service_pb2"

# Reads files with requests; prints one JSON object per span.
DECODE = r"""
import json, sys
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
def attributes(fields):
    return {f.key: getattr(f.value, f.value.WhichOneof("value")) for f in fields}
for path in sys.argv[1:]:
    request = ExportTraceServiceRequest()
    request.ParseFromString(open(path, "rb").read())
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for s in scope.spans:
                assert len(UnknownFieldSet(s)) == 0
                print(json.dumps(dict(resource=attributes(resource.resource.attributes), scope=scope.scope.name, trace=s.trace_id.hex(),
                    id=s.span_id.hex(), parent=s.parent_span_id.hex(), name=s.name, kind=s.kind, begin=s.start_time_unix_nano,
                    end=s.end_time_unix_nano, attributes=attributes(s.attributes), code=s.status.code, message=s.status.message)))
"""

SCRIPT = r"""
local flow = require "flow"
local make = flow.shell("make", { command = [[echo ${TRACEPARENT:-}]] })
local flaky = flow.task("flaky", { retries = { max = 2, backoff = "1ms" } }, function(ctx, i)
  if ctx.attempt == 1 then error("not yet") end
  return os.getenv("TRACEPARENT")
end)
return flow.pipeline("traced", {}, function() return { made = make {}.stdout, seen = flow.map(flaky, { 1, 2 }) } end)
"""

FAILING = r"""
local flow = require "flow"
local bad = flow.shell("bad", { command = [[echo wrong >&2; exit 3]] })
return flow.pipeline("failing", {}, function() return bad {}.stdout end)
"""

PARENT_TRACE, PARENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PHASES = ["queue", "stage", "run", "commit"]


class Collector(http.server.ThreadingHTTPServer):
    """Keeps the requests. `answers`: statuses of the next ones; "hold": not answered until `release` is set."""
    daemon_threads = True

    def __init__(self, folder, answers=()):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.answers, self.release = folder, list(answers), threading.Event()
        self.requests, self.lock = [], threading.Lock()
        self.url = "http://127.0.0.1:%d" % self.server_address[1]
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server = self.server
        with server.lock:
            path = os.path.join(server.folder, "request%d" % len(server.requests))
            with open(path, "wb") as out:
                out.write(body)
            status = server.answers.pop(0) if server.answers else 200
            server.requests.append((self.path, dict(self.headers), path, status))
        if status == "hold":
            server.release.wait()
            return
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Traces(Place):
    def setUp(self):
        super().setUp()
        for name in [name for name in self.env if name.startswith("OTEL_") or name == "TRACEPARENT"]:
            del self.env[name]
        self.write("traced.lua", SCRIPT)
        self.write("failing.lua", FAILING)

    def collector(self, *answers):
        server = Collector(self.folder, answers)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.addCleanup(server.release.set)
        self.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = server.url
        return server

    def spans(self, server):
        paths = [path for _, _, path, status in server.requests if status == 200]
        done = subprocess.run([PYTHON, "-c", DECODE, *paths], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def result(self, done):
        return json.loads(done.out.splitlines()[-1])

    def test_a_run_is_a_trace_of_its_attempts(self):
        server = self.collector()
        run = self.result(self.good("run", "traced.lua", "--name", "night", "--json"))
        spans = self.spans(server)
        self.assertEqual({(path, headers["Content-Type"]) for path, headers, _, _ in server.requests},
                         {("/v1/traces", "application/x-protobuf")})
        self.assertEqual({(span["scope"], span["resource"]["service.name"], span["kind"]) for span in spans}, {("flow", "flow", 1)})
        (root,) = [span for span in spans if span["parent"] == ""]
        self.assertEqual((root["name"], root["code"]), ("traced", 0))
        self.assertEqual({key: root["attributes"][key] for key in ("flow.run", "flow.run.name", "flow.status", "flow.pipeline")},
                         {"flow.run": run["run"], "flow.run.name": "night", "flow.status": "succeeded", "flow.pipeline": "traced"})
        self.assertEqual({span["trace"] for span in spans}, {root["trace"]})
        self.assertEqual(len({span["id"] for span in spans}), len(spans))
        attempts = [span for span in spans if span["parent"] == root["id"]]
        self.assertEqual(sorted((s["name"], s["attributes"]["flow.task"], s["attributes"]["flow.attempt"], s["attributes"]["flow.outcome"],
                                 s["attributes"].get("flow.cause"), s["code"]) for s in attempts),
                         [("flaky", "flaky[1]", 1, "failed", "user_error", 2), ("flaky", "flaky[1]", 2, "succeeded", None, 0),
                          ("flaky", "flaky[2]", 1, "failed", "user_error", 2), ("flaky", "flaky[2]", 2, "succeeded", None, 0),
                          ("make", "make", 1, "succeeded", None, 0)])
        self.assertEqual(len(spans), 1 + 5 + 4 * 5)
        for attempt in attempts:
            parts = sorted([span for span in spans if span["parent"] == attempt["id"]], key=lambda span: PHASES.index(span["name"]))
            self.assertEqual([part["name"] for part in parts], PHASES)
            times = [attempt["begin"]] + [time for part in parts for time in (part["begin"], part["end"])] + [attempt["end"]]
            self.assertEqual(times, sorted(times))
            self.assertEqual([part["end"] for part in parts[:-1]], [part["begin"] for part in parts[1:]])
            self.assertTrue(root["begin"] <= attempt["begin"] and attempt["end"] <= root["end"], (root, attempt))
            if attempt["code"]:
                self.assertIn("not yet", attempt["message"])
        # What the attempts saw names them.
        seen = {"make": run["result"]["made"].strip(), "flaky[1]": run["result"]["seen"][0], "flaky[2]": run["result"]["seen"][1]}
        for attempt in attempts:
            if attempt["attributes"]["flow.outcome"] == "succeeded":
                self.assertEqual(seen[attempt["attributes"]["flow.task"]], "00-%s-%s-01" % (root["trace"], attempt["id"]))

    def test_a_failed_run_is_a_failed_trace(self):
        server = self.collector()
        self.exits(1, self.flow("run", "failing.lua", "--quiet"))
        spans = {span["name"]: span for span in self.spans(server)}
        self.assertEqual((spans["failing"]["code"], spans["failing"]["attributes"]["flow.status"]), (2, "failed"))
        self.assertEqual((spans["bad"]["code"], spans["bad"]["attributes"]["flow.cause"]), (2, "exit_code"))

    def test_a_cached_task_has_no_span(self):
        server = self.collector()
        self.good("run", "traced.lua", "--quiet", OTEL_SDK_DISABLED="true")
        self.assertEqual(server.requests, [])
        self.good("run", "traced.lua", "--quiet")
        self.assertEqual([span["name"] for span in self.spans(server)], ["traced"])

    def test_the_parent_and_the_settings_are_those_of_the_environment(self):
        server = self.collector()
        self.good("run", "traced.lua", "--quiet", TRACEPARENT="00-%s-%s-01" % (PARENT_TRACE, PARENT_SPAN),
                  OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=server.url + "/my/path",
                  OTEL_EXPORTER_OTLP_HEADERS="x-key=a%20b, x-other=c", OTEL_SERVICE_NAME="night", OTEL_RESOURCE_ATTRIBUTES="site=a,service.name=x")
        spans = self.spans(server)
        self.assertEqual({span["trace"] for span in spans}, {PARENT_TRACE})
        self.assertEqual([span["name"] for span in spans if span["parent"] == PARENT_SPAN], ["traced"])
        self.assertEqual({(span["resource"]["service.name"], span["resource"]["site"]) for span in spans}, {("night", "a")})
        self.assertEqual({(path, headers["x-key"], headers["x-other"]) for path, headers, _, _ in server.requests}, {("/my/path", "a b", "c")})

    def test_a_trace_that_is_not_sampled_is_not_sent(self):
        server = self.collector()
        run = self.result(self.good("run", "traced.lua", "--json", TRACEPARENT="00-%s-%s-00" % (PARENT_TRACE, PARENT_SPAN)))
        self.assertEqual(server.requests, [])
        self.assertRegex(run["result"]["made"], "00-%s-[0-9a-f]{16}-00" % PARENT_TRACE)

    def test_without_a_collector_tasks_see_the_variable_of_their_run(self):
        parent = "00-%s-%s-01" % (PARENT_TRACE, PARENT_SPAN)
        run = self.result(self.good("run", "traced.lua", "--json", TRACEPARENT=parent))
        self.assertEqual((run["result"]["made"].strip(), run["result"]["seen"]), (parent, [parent, parent]))

    def test_a_collector_that_comes_back_gets_all_spans(self):
        server = self.collector(503)
        self.write("holds.lua", SCRIPT.replace("echo ${TRACEPARENT:-}", "while [ ! -e %s ]; do sleep 0.05; done" % self.path("gate")))
        client = self.start("run", "holds.lua", "--quiet")
        self.until("it is tried again", lambda: len(server.requests) >= 2)
        self.open("gate")
        self.exits(0, self.end(client))
        self.assertEqual(len(self.spans(server)), 1 + 5 + 4 * 5)

    def test_a_collector_that_fails_changes_no_run_and_is_told_of_once(self):
        def same(done):
            self.exits(0, done)
            run = self.result(done)
            return run["status"], run["counts"], [(task["name"], task["status"], task["attempts"]) for task in run["tasks"]]
        plain = same(self.flow("run", "traced.lua", "--json", "--state", "plain"))
        dead = self.flow("run", "traced.lua", "--json", "--state", "dead", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
        refusing = self.collector(*[400] * 50)
        refused = self.flow("run", "traced.lua", "--json", "--state", "refused")
        self.assertGreater(len(refusing.requests), 0)
        slow = self.collector(*["hold"] * 50)
        slowly = self.flow("run", "traced.lua", "--json", "--state", "slow")
        self.assertGreater(len(slow.requests), 0)
        for name, done, why in (("dead", dead, "onnect"), ("refused", refused, "400"), ("slow", slowly, "the process ended before")):
            with self.subTest(name):
                self.assertEqual(same(done), plain)
                self.assertEqual((done.out + done.err).count("traces are lost"), 1, done)
                self.assertIn(why, done.out + done.err, done)

    def test_settings_that_cannot_be_used_are_told_of_and_change_no_run(self):
        for name, value, words in (("OTEL_EXPORTER_OTLP_ENDPOINT", "nothing", "not a URL"),
                                   ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"),
                                   ("OTEL_EXPORTER_OTLP_HEADERS", "x", "name=value")):
            with self.subTest(name):
                done = self.good("run", "traced.lua", "--json", **{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", name: value})
                warnings = [line["text"] for line in done.lines() if line.get("event") == "warning"]
                self.assertEqual(len([text for text in warnings if "traces are not sent" in text and words in text]), 1, done)


if __name__ == "__main__":
    build = os.environ["FLOW_TEST_BUILD"]
    PYTHON, why = python_with_packages(build, "opentelemetry", ["opentelemetry-proto"], IMPORTS)
    if PYTHON is None:
        print("skipped: " + why)
        sys.exit(77)
    main()
