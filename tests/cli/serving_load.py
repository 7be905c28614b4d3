#!/usr/bin/env python3
"""No request to a service fails while its processes are killed, while versions change, or while it ends.

usage: serving_load.py --flow BIN [TEST...]

FLOW_LOAD_CLIENTS (8) and FLOW_LOAD_SECONDS (2) set the number of clients and for how long each phase is loaded.
"""
import http.client
import json
import os
import signal
import sys
import threading
import time
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

CLIENTS = int(os.environ.get("FLOW_LOAD_CLIENTS", "8"))
SECONDS = float(os.environ.get("FLOW_LOAD_SECONDS", "2"))
PATH = "/v2/models/scale/infer"
SCRIPT = r'''
local flow = require "flow"
local scale = flow.service("scale", { port = 0, batch = { max = 8 }, OPTIONS }, function(ctx, factor)
  return { predict = function(inputs) SLOWLY return { y = inputs.x * factor } end }
end)
return flow.pipeline("load", { factor = flow.param.int { default = 2 } }, function(p) return scale(p.factor) end)
'''


class LoadingClient(threading.Thread):
    """Sends requests over a connection that it keeps, until `stop` is set. A refused connection or a response with
    `Connection: close` is followed by a new connection; all else that is not a right answer is a failure."""

    def __init__(self, url, factors, stop):
        super().__init__(daemon=True)
        self.port = urllib.parse.urlsplit(url).port
        self.factors, self.stop = factors, stop
        self.times, self.seen, self.failures, self.refused = [], set(), [], 0

    def run(self):
        while not self.stop.is_set():
            try:
                self.use_connection()
            except ConnectionRefusedError:
                self.refused += 1
                time.sleep(0.01)
            except (OSError, http.client.HTTPException) as error:
                self.failures.append((time.monotonic(), repr(error)))

    def use_connection(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.connect()
        while connection.sock is not None and not self.stop.is_set():
            number = len(self.times) + 1
            body = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [number]}]})
            connection.request("POST", PATH, body)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                self.failures.append((time.monotonic(), answer.status, text))
                continue
            factor = json.loads(text)["outputs"][0]["data"][0] / number
            if factor not in self.factors:
                self.failures.append((time.monotonic(), "wrong answer", text))
            self.seen.add(factor)
            self.times.append(time.monotonic())
        connection.close()


class Load:
    def __init__(self, url, factors):
        self.stop = threading.Event()
        self.clients = [LoadingClient(url, factors, self.stop) for _ in range(CLIENTS)]
        for client in self.clients:
            client.start()

    def answered(self):
        return sum(len(client.times) for client in self.clients)

    def end(self):
        self.stop.set()
        for client in self.clients:
            client.join()

    def failures(self):
        return [failure for client in self.clients for failure in client.failures]

    def refused(self):
        return sum(client.refused for client in self.clients)

    def seen(self):
        return set().union(*(client.seen for client in self.clients))

    def longest_gap(self):
        """In seconds: the longest time without an answer to any client."""
        times = sorted(at for client in self.clients for at in client.times)
        return max(after - before for before, after in zip(times, times[1:]))


def script(options="", slowly=""):
    return SCRIPT.replace("OPTIONS", options).replace("SLOWLY", slowly)


class ServingLoad(Place):
    def serve(self, text, *words):
        self.write("pipeline.lua", text)
        run = self.start("run", ".", *words)
        self.until("it serves", lambda: run.poll() is not None or any(r["status"] == "serving" for r in self.runs()))
        self.assertIsNone(run.poll(), "flow ended")
        return run

    def services(self):
        return self.good("services", "--json").lines()

    def replicas(self):
        [service] = self.services()
        return {replica["pid"]: replica for replica in service["replicas"] if replica.get("pid")}

    def loaded(self, load):
        """Waits until each client has more answers, for as long as a phase lasts."""
        before = [len(client.times) for client in load.clients]
        begin = time.monotonic()
        self.until("all clients get answers", lambda: time.monotonic() - begin >= SECONDS and all(
            len(client.times) > count for client, count in zip(load.clients, before)))

    def report(self, what, load):
        print("%s: %d answered, %d failed, %d connections refused, longest gap %.0f ms" % (
            what, load.answered(), len(load.failures()), load.refused(), 1000 * load.longest_gap()), file=sys.stderr)

    def stop(self, run):
        run.send_signal(signal.SIGINT)
        return self.exits(0, self.end(run))

    def test_each_replica_is_killed_in_turn(self):
        run = self.serve(script("replicas = 3"))
        [service] = self.services()
        first = self.replicas()
        self.assertEqual(len(first), 3)
        load = Load(service["url"], {2})
        for pid in first:
            self.loaded(load)
            os.kill(pid, signal.SIGKILL)
            self.until("it is replaced", lambda: len(self.replicas()) == 3 and pid not in self.replicas())
        self.loaded(load)
        load.end()
        self.report("replicas killed", load)
        self.assertEqual((load.failures(), load.refused()), ([], 0))
        self.assertFalse(set(first) & set(self.replicas()))
        self.stop(run)

    def test_a_new_version_takes_over(self):
        run = self.serve(script("replicas = 2"), "--name", "prod")
        [service] = self.services()
        load = Load(service["url"], {2, 3})
        self.loaded(load)
        new = self.start("run", ".", "--name", "prod", "--param", "factor=3")
        self.until("the new version serves", lambda: new.poll() is not None or
                   [each["version"] for each in self.services()] not in ([], [service["version"]]) and
                   len(self.services()) == 1)
        self.loaded(load)
        load.end()
        self.report("rollover", load)
        self.assertEqual((load.failures(), load.refused()), ([], 0))
        self.assertEqual(load.seen(), {2, 3})
        [after] = self.services()
        self.assertEqual(after["url"], service["url"])
        self.assertEqual(self.show(service["version"])["status"], "succeeded")
        self.stop(new)
        self.exits(0, self.end(run))

    def test_a_canary_that_is_too_slow_is_rolled_back(self):
        run = self.serve(script("replicas = 2"), "--name", "prod")
        [service] = self.services()
        load = Load(service["url"], {2, 3})
        self.loaded(load)
        self.write("pipeline.lua", script(
            'canary = { 20, 100, every = "1s", max_p99 = "20ms", min_requests = 5 }',
            "local t = os.clock() while os.clock() - t < 0.05 do end"))
        new = self.end(self.start("run", ".", "--name", "prod", "--param", "factor=3"))
        self.loaded(load)
        load.end()
        self.report("canary and rollback", load)
        self.exits(1, new, "p99")
        self.assertEqual((load.failures(), load.refused()), ([], 0))
        self.assertEqual(load.seen(), {2, 3})
        [after] = self.services()
        self.assertEqual((after["version"], after["url"]), (service["version"], service["url"]))
        self.stop(run)

    def test_the_engine_is_killed_and_resumed(self):
        run = self.serve(script("replicas = 2"))
        [service] = self.services()
        before = self.replicas()
        load = Load(service["url"], {2})
        self.loaded(load)
        self.kill(run)
        self.loaded(load)
        again = self.start("resume", "last")
        self.until("it serves again", lambda: again.poll() is not None or
                   [each["status"] for each in self.services()] == ["serving"])
        self.loaded(load)
        load.end()
        self.report("engine killed", load)
        self.assertEqual((load.failures(), load.refused()), ([], 0))
        [after] = self.services()
        self.assertEqual(after["url"], service["url"])
        self.assertEqual(set(self.replicas()), set(before))
        self.stop(again)

    def test_a_drain_answers_what_it_accepted(self):
        run = self.serve(script("replicas = 2"))
        [service] = self.services()
        load = Load(service["url"], {2})
        self.loaded(load)
        self.stop(run)
        load.end()
        self.report("drain", load)
        self.assertEqual(load.failures(), [])


if __name__ == "__main__":
    main()
