#!/usr/bin/env python3
"""A service that gets twice as many requests as it can answer keeps the deadlines of those that it accepts and refuses
the others at once; clients that read or send slowly take neither its memory nor the turn of others. What was measured is
printed at the end.

usage: serving_overload.py --flow BIN --open-loop BIN [TEST...]

These variables set the size of the load:
  FLOW_LOAD_SECONDS  for how long there are too many requests (5)
  FLOW_LOAD_LIMITS   1: fails if a time is not what an idle machine reaches
"""
import contextlib
import glob
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import OPTIONS, Place, main  # noqa: E402

SECONDS = float(os.environ.get("FLOW_LOAD_SECONDS", "5"))
HAS_LIMITS = os.environ.get("FLOW_LOAD_LIMITS") == "1"
PATH = "/v2/models/slow/infer"
CALL_MS, ROWS, TIMEOUT_MS = 40, 8, 2000
CAPACITY = ROWS * 1000 / CALL_MS  # requests per second
MIB = 1 << 20
BYTES_MAX = 256 * MIB  # of all bodies and responses of a front
# A call takes the same time, whatever its rows. Its output has as many MiB as `mib` says.
SCRIPT = r'''
local flow = require "flow"
local slow = flow.service("slow", { port = 0, OPTIONS }, function(ctx)
  return { predict = function(inputs)
    if CALL > 0 then os.execute("sleep CALL") end
    if inputs.mib then return { y = flow.zeros { inputs.mib[1] * 262144 } } end
    return { y = inputs.x * 2 }
  end }
end)
return flow.pipeline("overload", {}, function() return slow() end)
'''
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [4]}]})
LINES = []


class Probe(threading.Thread):
    """Asks for paths that need no replica again and again. A call that takes longer than `timeout` makes a service not
    ready, as a busy machine may."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.is_over = port, threading.Event()
        self.times, self.failures = [], []

    def run(self):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            while not self.is_over.wait(0.02):
                for path in ("/v2/health/ready", "/metrics"):
                    began = time.monotonic()
                    connection.request("GET", path)
                    answer = connection.getresponse()
                    answer.read()
                    self.times.append(time.monotonic() - began)
                    if answer.status != 200 and (HAS_LIMITS or path == "/metrics"):
                        self.failures.append((path, answer.status))

    def end(self):
        self.is_over.set()
        self.join()
        return 1000 * max(self.times)


class ServingOverload(Place):
    @classmethod
    def setUpClass(cls):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    @classmethod
    def tearDownClass(cls):
        print("\n" + "\n".join(LINES), file=sys.stderr)

    def serve(self, options, call_ms=CALL_MS):
        self.write("pipeline.lua", SCRIPT.replace("OPTIONS", options).replace("CALL", "%g" % (call_ms / 1000)))
        self.write("body.json", BODY)
        self.run_ = self.start("run", ".")
        self.until("it serves", lambda: self.run_.poll() is not None or any(each.get("url") for each in self.runs()))
        self.port = urllib.parse.urlsplit(self.show()["url"]).port
        [self.front] = [int(self.read(path)) for path in glob.glob(os.path.join(self.state, "fronts", "*", "front.pid"))]

    def stop(self):
        self.run_.send_signal(signal.SIGINT)
        self.exits(0, self.end(self.run_))

    def front_bytes(self):
        with open("/proc/%d/statm" % self.front) as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    def offer(self, rate, seconds):
        """Requests at this rate, whether or not they are answered. Also the largest memory of the front meanwhile."""
        process = subprocess.Popen([OPTIONS.open_loop, str(self.port), PATH, self.path("body.json"), str(rate), str(seconds)],
                                   stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        largest = 0
        while process.poll() is None:
            largest = max(largest, self.front_bytes())
            time.sleep(0.02)
        out, _ = process.communicate()
        return json.loads(out), largest

    def infer(self):
        """The status of a request over a connection of its own."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request("POST", PATH, BODY)
            return connection.getresponse().status

    def overload(self, scenario, options):
        self.serve(options + 'batch = { max = %d }, timeout = "%dms"' % (ROWS, TIMEOUT_MS))
        self.offer(CAPACITY / 2, 1)  # warms it up
        before = self.front_bytes()
        probe = Probe(self.port)
        probe.start()
        seen, largest = self.offer(2 * CAPACITY, SECONDS)
        answer_ms = probe.end()
        after, _ = self.offer(CAPACITY / 4, 1)
        statuses = seen["statuses"]
        LINES.append("%s: %d requests/s for %g s, twice what it can answer" % (scenario, 2 * CAPACITY, SECONDS))
        for status, of in sorted(statuses.items()):
            LINES.append("  status %s  %7d  p50 %.1f ms  p99 %.1f ms  longest %.1f ms" % (
                status, of["count"], of["p50_ms"], of["p99_ms"], of["longest_ms"]))
        LINES.append("  connections %d, front's memory %.1f MiB before and %.1f at most" % (
            seen["connections"], before / MIB, largest / MIB))
        LINES.append("  ready and metrics within %.1f ms; the requests were sent up to %.1f ms late" % (answer_ms, seen["late_ms"]))
        LINES.append("  right after that: %s" % {status: of["count"] for status, of in after["statuses"].items()})

        self.assertEqual(probe.failures, [])
        self.assertEqual((seen["ended"], seen["unanswered"], seen["without_retry_after"]), (0, 0, 0))
        self.assertLessEqual(set(statuses), {"200", "429", "504"})
        accepted, lapsed = statuses["200"]["count"], statuses.get("504", {"count": 0})["count"]
        self.assertGreater(statuses["429"]["count"], 0)
        self.assertGreater(accepted, 0)
        self.assertLess(largest, before + 64 * MIB)
        self.until("it answers again", lambda: self.infer() == 200)
        if HAS_LIMITS:
            self.assertEqual(lapsed, 0)
            self.assertEqual(set(after["statuses"]), {"200"})
            self.assertLess(statuses["200"]["longest_ms"], TIMEOUT_MS)
            self.assertGreater(accepted, 0.8 * CAPACITY * SECONDS)
            self.assertLess(statuses["429"]["p99_ms"], 20)
            self.assertLess(answer_ms, 100)
        self.stop()

    def test_a_short_queue_bounds_the_time_of_accepted_requests(self):
        self.overload("queue of 32", "queue = 32, ")

    def test_a_long_queue_takes_no_request_that_it_would_answer_too_late(self):
        self.overload("queue of 1024", "")

    def answered_beside(self, scenario, slow, before):
        """Others are answered, although `slow` clients are there: refused for a second at most, until those give way."""
        began, statuses = time.monotonic(), []
        while not statuses or statuses[-1] != 200 or len(statuses) < 50:
            statuses.append(self.infer())
            self.assertLess(time.monotonic(), began + 60, statuses[-20:])
        largest = self.front_bytes()
        LINES.append("%s: %d clients; of %d requests beside them %d got 200, %d of them at the end; front's memory %.1f MiB before, "
                     "and %.1f" % (scenario, len(slow), len(statuses), statuses.count(200),
                                   len(statuses) - 1 - max([-1] + [i for i, each in enumerate(statuses) if each != 200]),
                                   before / MIB, largest / MIB))
        self.assertLessEqual(set(statuses), {200, 503})
        self.assertLess(largest, before + 2 * BYTES_MAX)

    def connect(self, receive_bytes=None):
        client = socket.socket()
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.connect(("127.0.0.1", self.port))
        self.addCleanup(client.close)
        return client

    def test_clients_that_send_slowly_do_not_take_the_memory_or_the_turn_of_others(self):
        self.serve('timeout = "60s"', call_ms=0)
        before = self.front_bytes()
        body = b"x" * (7 * MIB)
        slow = [self.connect() for _ in range(60)]
        for client in slow:
            with contextlib.suppress(OSError):  # those beyond the limit get 503
                client.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), 8 * MIB))
                client.sendall(body)
        self.answered_beside("bodies that stop before their end", slow, before)
        trickling = [self.connect() for _ in range(2000)]
        for client in trickling:
            client.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{" % PATH.encode())
        for client in trickling[:1000]:
            client.sendall(b" ")
        self.answered_beside("bodies of a few bytes", trickling, before)
        heads = [self.connect() for _ in range(2000)]
        for client in heads:
            client.sendall(b"POST %s HTTP/1.1\r\nHost: local" % PATH.encode())
        self.answered_beside("heads that stop before their end", heads, before)
        self.stop()

    def test_uploads_take_no_place_in_the_queue_before_their_end(self):
        self.serve('queue = 1, timeout = "60s"', call_ms=0)
        head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (PATH.encode(), len(BODY))
        uploads = [self.connect() for _ in range(20)]
        for client in uploads:
            client.settimeout(60)
            client.sendall(head + BODY[:-1].encode())
        self.assertEqual([self.infer() for _ in range(20)], [200] * 20)
        for client in uploads:  # one after the other
            client.sendall(BODY[-1:].encode())
            self.assertTrue(client.recv(64).startswith(b"HTTP/1.1 200 "))
        self.stop()

    def test_clients_that_do_not_read_do_not_take_the_memory_or_the_turn_of_others(self):
        self.serve('timeout = "60s"', call_ms=0)
        before = self.front_bytes()
        body = json.dumps({"parameters": {"binary_data_output": True}, "inputs": [
            {"name": "mib", "shape": [1], "datatype": "FP32", "data": [16]}]}).encode()
        slow = [self.connect(receive_bytes=4096) for _ in range(40)]
        for client in slow:
            client.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (PATH.encode(), len(body), body))
        self.answered_beside("responses that are not read", slow, before)
        self.stop()


if __name__ == "__main__":
    main("--open-loop")
