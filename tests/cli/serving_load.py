#!/usr/bin/env python3
"""No request to a service fails while its processes are killed, while versions change, or while it ends: neither over
HTTP, with kept and new connections, pipelined and streamed, nor over gRPC, with calls and streams. A table of what the
clients have seen is printed at the end.

usage: serving_load.py --flow BIN --clients BIN [TEST...]

These variables set the size of the load:
  FLOW_LOAD_CLIENTS  number of clients (8)
  FLOW_LOAD_SECONDS  for how long each phase is loaded (2)
  FLOW_LOAD_AWAY     for how many seconds a killed engine stays away (4), less than `--front-lease` (60)
  FLOW_LOAD_LIMITS   1: fails if no client gets an answer for 100 ms, or if a request takes 1 s, as on an idle machine
"""
import json
import os
import re
import select
import signal
import subprocess
import sys
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import OPTIONS, WAIT_SECONDS_MAX, Place, main  # noqa: E402

CLIENTS = int(os.environ.get("FLOW_LOAD_CLIENTS", "8"))
SECONDS = float(os.environ.get("FLOW_LOAD_SECONDS", "2"))
AWAY_SECONDS = float(os.environ.get("FLOW_LOAD_AWAY", "4"))
HAS_LIMITS = os.environ.get("FLOW_LOAD_LIMITS") == "1"
GAP_MS_MAX, REQUEST_MS_MAX = 100, 1000
# Of each eight clients.
SHARES = {"kept": 3, "new": 1, "pipelined": 1, "call": 2, "stream": 1}
SCRIPT = r'''
local flow = require "flow"
local scale = flow.service("scale", { port = 0, GRPC batch = { max = 8 }, OPTIONS }, function(ctx, factor)
  return { predict = function(inputs) SLOWLY return { y = inputs.x * factor } end }
end)
return flow.pipeline("load", { factor = flow.param.int { default = 2 } }, function(p) return scale(p.factor) end)
'''
# Each response of /events has 20 chunks, one every 20 ms.
EVENTS = r'''
import http.server, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        if self.path != "/events":
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(20):
            time.sleep(0.02)
            self.wfile.write(b"9\r\ndata: 1\n\n\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_):
        pass

class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128

Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
'''
WRAPPED = r'''
local flow = require "flow"
local web = flow.service("web", { port = 0, replicas = 2, ready = "/health", args = { "folder", "factor" },
  command = [[exec python3 {folder}/events.py {port} {factor}]] })
return flow.pipeline("events", { factor = flow.param.int { default = 2 } }, function(p) return web("FOLDER", p.factor) end)
'''
TABLE = []


def kinds():
    return subprocess.run([OPTIONS.clients, "--kinds"], stdout=subprocess.PIPE, check=True, text=True).stdout.split()


def counts():
    """As many clients of each kind as make CLIENTS, without those of gRPC if it is not built in."""
    shares = {kind: share for kind, share in SHARES.items() if kind in kinds()}
    of = {kind: max(1, CLIENTS * share // 8) for kind, share in shares.items()}
    of["kept"] += max(0, CLIENTS - sum(of.values()))
    return of


class Load:
    """Clients that send requests until end()."""

    def __init__(self, place, url, grpc, model, clients):
        words = ["%s=%d" % each for each in clients.items()]
        self.process = subprocess.Popen(
            [OPTIONS.clients, str(urllib.parse.urlsplit(url).port), str(grpc), model, *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        place.addCleanup(self.process.kill)
        self.place = place

    def wait(self, seconds=SECONDS):
        """For so long, and until each client has a further answer. No connection was refused so far."""
        self.process.stdin.write("wait %g\n" % seconds)
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], seconds + WAIT_SECONDS_MAX)
        self.place.assertTrue(ready, "a client gets no answers")
        self.place.assertEqual(self.process.stdout.readline(), "0\n", "connections were refused")

    def end(self):
        out, _ = self.process.communicate(timeout=WAIT_SECONDS_MAX)
        return json.loads(out)


def print_table():
    print("\n%-42s %-9s %7s %9s %6s %7s %8s %8s %8s %8s" % (
        "scenario", "kind", "clients", "answered", "failed", "refused", "gap ms", "p50 ms", "p99 ms", "longest"), file=sys.stderr)
    for scenario, kind, seen in TABLE:
        print("%-42s %-9s %7d %9d %6d %7d %8.1f %8.2f %8.2f %8.1f" % (
            scenario, kind, seen["clients"], seen["answered"], seen["failed"], seen["refused"], seen["gap_ms"],
            seen["p50_ms"], seen["p99_ms"], seen["longest_ms"]), file=sys.stderr)


class ServingLoad(Place):
    maxDiff = None

    @classmethod
    def tearDownClass(cls):
        print_table()

    def serve(self, text, *words):
        self.write("pipeline.lua", text)
        run = self.start("run", ".", *words)
        self.until("it serves", lambda: run.poll() is not None or any(r["status"] == "serving" for r in self.runs()))
        self.assertIsNone(run.poll(), "flow ended")
        return run

    def script(self, options="", slowly=""):
        grpc = "grpc = 0," if "call" in kinds() else ""
        return SCRIPT.replace("GRPC", grpc).replace("OPTIONS", options).replace("SLOWLY", slowly)

    def services(self):
        return self.good("services", "--json").lines()

    def replicas(self):
        [service] = self.services()
        return {replica["pid"]: replica for replica in service["replicas"] if replica.get("pid")}

    def load(self, service):
        """Clients that have answers."""
        grpc = 0
        if "call" in kinds():
            [line] = set(re.findall(r"gRPC: 127\.0\.0\.1:(\d+)", self.good("logs", service["version"], "scale").out))
            grpc = int(line)
        load = Load(self, service["url"], grpc, "scale", counts())
        load.wait()
        return load

    def finish(self, scenario, load, factors, may_refuse=False):
        """Ends the load. No request has failed, and the answers are of these versions."""
        seen = load.end()
        TABLE.extend((scenario, kind, seen[kind]) for kind in sorted(seen, key=lambda kind: (kind == "all", kind)))
        everything = seen["all"]
        # gRPC's library ends a call that arrives as its server closes: that is one that is refused.
        cut = [each for each in everything["failures"] if may_refuse and each == "call: 1 CANCELLED"]
        everything["failures"] = [each for each in everything["failures"] if each not in cut]
        if cut and not everything["failures"]:
            everything["failed"] = 0
        self.assertEqual((everything["failures"], everything["failed"]), ([], 0))
        if not may_refuse:
            self.assertEqual(everything["refused"], 0)
        self.assertEqual(set(everything["factors"]), factors)
        for kind, of in seen.items():
            self.assertGreater(of["answered"], 0, kind)
        if HAS_LIMITS:
            self.assertLess(everything["gap_ms"], GAP_MS_MAX)
            self.assertLess(everything["longest_ms"], REQUEST_MS_MAX)

    def stop(self, run):
        run.send_signal(signal.SIGINT)
        return self.exits(0, self.end(run))

    def resume(self):
        again = self.start("resume", "last")
        self.until("it serves again", lambda: again.poll() is not None or
                   [each["status"] for each in self.services()] == ["serving"])
        return again

    def roll_over(self, version):
        """A new version, once it has taken over."""
        new = self.start("run", ".", "--name", "prod", "--param", "factor=3")
        self.until("the new version serves", lambda: new.poll() is not None or
                   [each["version"] for each in self.services()] not in ([], [version]) and len(self.services()) == 1)
        self.assertIsNone(new.poll(), "flow ended")
        return new

    def test_each_replica_is_killed_in_turn(self):
        run = self.serve(self.script("replicas = 3"))
        [service] = self.services()
        first = self.replicas()
        self.assertEqual(len(first), 3)
        load = self.load(service)
        for pid in first:
            os.kill(pid, signal.SIGKILL)
            self.until("it is replaced", lambda: len(self.replicas()) == 3 and pid not in self.replicas())
            load.wait()
        self.finish("each replica killed", load, {2})
        self.assertFalse(set(first) & set(self.replicas()))
        self.stop(run)

    def test_a_new_version_takes_over(self):
        run = self.serve(self.script("replicas = 2"), "--name", "prod")
        [service] = self.services()
        load = self.load(service)
        new = self.roll_over(service["version"])
        load.wait()
        self.finish("rollover", load, {2, 3})
        [after] = self.services()
        self.assertEqual(after["url"], service["url"])
        self.assertEqual(self.show(service["version"])["status"], "succeeded")
        self.stop(new)
        self.exits(0, self.end(run))

    def test_a_canary_that_is_too_slow_is_rolled_back(self):
        run = self.serve(self.script("replicas = 2"), "--name", "prod")
        [service] = self.services()
        load = self.load(service)
        self.write("pipeline.lua", self.script(
            'replicas = 2, canary = { 20, 100, every = "1s", max_p99 = "20ms", min_requests = 5 }',
            "local t = os.clock() while os.clock() - t < 0.03 do end"))
        new = self.end(self.start("run", ".", "--name", "prod", "--param", "factor=3"))
        load.wait()
        self.exits(1, new, "p99")
        self.finish("canary and rollback", load, {2, 3})
        [after] = self.services()
        self.assertEqual((after["version"], after["url"]), (service["version"], service["url"]))
        self.stop(run)

    def test_the_engine_is_killed_and_stays_away_before_it_resumes(self):
        run = self.serve(self.script("replicas = 2"))
        [service] = self.services()
        before = self.replicas()
        load = self.load(service)
        self.kill(run)
        load.wait(AWAY_SECONDS)
        again = self.resume()
        load.wait()
        self.finish("engine killed, away for %g s" % AWAY_SECONDS, load, {2})
        [after] = self.services()
        self.assertEqual(after["url"], service["url"])
        self.assertEqual(set(self.replicas()), set(before))
        self.stop(again)

    def test_a_replica_is_killed_while_the_engine_is_away(self):
        run = self.serve(self.script("replicas = 2"))
        [service] = self.services()
        first = sorted(self.replicas())[0]
        load = self.load(service)
        self.kill(run)
        os.kill(first, signal.SIGKILL)
        load.wait(AWAY_SECONDS)
        again = self.resume()
        self.until("it is replaced", lambda: len(self.replicas()) == 2 and first not in self.replicas())
        load.wait()
        self.finish("engine and a replica killed", load, {2})
        self.stop(again)

    def test_a_drain_answers_what_it_accepted(self):
        run = self.serve(self.script("replicas = 2"))
        [service] = self.services()
        load = self.load(service)
        self.stop(run)
        self.finish("drain", load, {2}, may_refuse=True)

    def test_responses_in_parts_are_whole_while_versions_change_and_the_engine_is_killed(self):
        self.write("events.py", EVENTS)
        text = WRAPPED.replace("FOLDER", self.folder)
        run = self.serve(text, "--name", "prod")
        [service] = self.services()
        load = Load(self, service["url"], 0, "/events", {"events": max(2, CLIENTS // 2)})
        load.wait()
        new = self.roll_over(service["version"])
        load.wait()
        self.kill(run)  # it goes on for the other run
        self.kill(new)
        load.wait(AWAY_SECONDS)
        again = self.resume()
        load.wait()
        self.stop(again)
        self.finish("streams: rollover, engine killed, drain", load, {1}, may_refuse=True)


if __name__ == "__main__":
    main("--clients")
