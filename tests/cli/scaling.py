#!/usr/bin/env python3
"""The replicas of a service follow its load, and no request fails meanwhile.

usage: scaling.py --flow BIN [TEST...]
"""
import http.client
import json
import os
import signal
import sys
import threading
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

# A call takes 50 ms, so each client that waits for another one's answer is above the target.
SCRIPT = r'''
local flow = require "flow"
local slow = flow.service("slow", { port = 0, replicas = {
  min = 1, max = 3, target_queue = "TARGET", up_after = "1s", down_after = "2s" }, queue = QUEUE },
  function()
    return { predict = function(inputs)
      os.execute("sleep 0.05")
      return { y = inputs.x * 2 }
    end }
  end)
return flow.pipeline("scaled", {}, function() return slow() end)
'''
BODY = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [4]}]})


class Clients:
    """Each sends one request after the other, until it is told to end."""

    def __init__(self, url):
        self.address = urllib.parse.urlsplit(url).netloc
        self.threads, self.stops = [], []
        self.answers, self.failures = 0, []
        self.lock = threading.Lock()

    def add(self, count):
        for _ in range(count):
            stop = threading.Event()
            thread = threading.Thread(target=self.send, args=(stop,))
            self.stops.append(stop)
            self.threads.append(thread)
            thread.start()

    def keep(self, count):
        """The others end, and have had their answers."""
        for stop, thread in list(zip(self.stops, self.threads))[count:]:
            stop.set()
            thread.join()
        del self.stops[count:], self.threads[count:]

    def send(self, stop):
        connection = None
        while not stop.is_set():
            try:
                connection = connection or http.client.HTTPConnection(self.address, timeout=60)
                connection.request("POST", "/v2/models/slow/infer", BODY)
                answer = connection.getresponse()
                body = answer.read()
                status = answer.status
                if answer.will_close:
                    connection.close()
                    connection = None
                good = status == 200 and json.loads(body)["outputs"][0]["data"] == [8]
            except (OSError, http.client.HTTPException) as error:
                status, good, connection = repr(error), False, None
            with self.lock:
                self.answers += good
                if not good:
                    self.failures.append(status)
            if not good:
                stop.wait(0.02)
        if connection is not None:
            connection.close()


class Scaling(Place):
    def serve(self, queue="1024", target="10ms"):
        self.write("pipeline.lua", SCRIPT.replace("QUEUE", queue).replace("TARGET", target))
        run = self.start("run", ".", "--json", "--log-file", self.path("flow.log"))
        self.until_serves()
        clients = Clients(self.show()["url"])
        self.addCleanup(clients.keep, 0)
        return run, clients

    def until_serves(self):
        self.until("it serves", lambda: [each["status"] for each in self.runs()] == ["serving"])

    def service(self):
        (service,) = self.good("services", "--json").lines()
        return service

    def until_has(self, count):
        """So many replicas are wanted and there, and all of them answer."""
        def has():
            service = self.service()
            names = {each["name"] for each in service["replicas"] if each["status"] in ("ready", "busy")}
            return service["scaling"]["wanted"] == count and len(service["replicas"]) == count and \
                names == {"slow[%d]" % number for number in range(count)}
        self.until("it has %d replicas" % count, has)

    def ends(self, run):
        run.send_signal(signal.SIGINT)
        done = self.exits(0, self.end(run))
        self.assertEqual(self.show()["status"], "succeeded")
        return done

    def test_replicas_follow_the_load_up_and_down_without_a_failed_request(self):
        run, clients = self.serve()
        self.assertEqual(self.service()["scaling"], {"min": 1, "max": 3, "wanted": 1})
        self.assertEqual(list(self.tasks()), ["slow[0]"])
        self.assertIn("1 of 1..3 replicas", self.good("services").out)
        self.assertEqual(self.good("why", "last", "slow[2]").out,
                         "`slow[2]` is not needed: at its present load `slow` has 1 of 1 to 3 replicas.\n")
        clients.add(6)
        self.until_has(3)
        self.assertIn("3 of 1..3 replicas", self.good("services").out)
        self.assertRegex(self.good("show").out, r"\nreplicas +slow: 3 of 1\.\.3\n")
        self.assertEqual(self.show()["counts"]["running"], 3)
        self.assertGreater(self.service()["queue_ms"], 0)
        clients.keep(1)
        self.until_has(1)
        self.assertIn("`slow` is a service of 1 of 1 to 3 replicas at http://127.0.0.1:",
                      self.good("why", "last", "slow").out)
        self.assertEqual(self.show()["counts"]["running"], 1)
        # What was stopped because it was not needed starts again.
        clients.add(5)
        self.until_has(3)
        self.assertGreater(self.tasks()["slow[1]"]["attempts"], 1)
        clients.keep(0)
        self.assertEqual(clients.failures, [])
        self.assertGreater(clients.answers, 0)
        events = self.ends(run).lines()[:-1]
        shown = self.show()
        self.assertEqual(shown["counts"]["succeeded"], len(shown["tasks"]))
        self.assertEqual(shown["counts"]["failed"], 0)
        parked = [(event["task"], event["waits_for"]) for event in events if event.get("status") == "pending"]
        self.assertEqual(parked[:2], [
            ("slow[%d]" % number, "it is not needed: at its present load `slow` has %s of 1 to 3 replicas" % number)
            for number in (2, 1)])
        log = self.read("flow.log")
        self.assertIn("`slow` has 2 replicas, by its load; before: 1", log)
        self.assertIn("`slow` has 1 replica, by its load; before: 2", log)
        self.assertNotIn("retried", log)

    def test_a_resume_has_as_many_replicas_as_there_were_and_goes_on_to_scale(self):
        run, clients = self.serve()
        clients.add(6)
        self.until_has(3)
        self.kill(run)
        answers = clients.answers
        self.until("it answers without a flow", lambda: clients.answers > answers + 4)
        self.assertIn("`slow` is a service of 3 of 1 to 3 replicas: 3 running.", self.good("why", "last", "slow").out)
        again = self.start("resume", "last")
        self.until_serves()
        self.until_has(3)
        clients.keep(1)
        self.until_has(1)
        clients.keep(0)
        self.assertEqual(clients.failures, [])
        self.ends(again)

    def test_new_code_ends_the_replicas_that_the_load_had_added(self):
        self.write("pipeline.lua", SCRIPT.replace("QUEUE", "1024").replace("TARGET", "10ms"))
        left = self.detached("run", ".", "--name", "prod", "--front-lease", "10m")
        clients = Clients(left["services"][0]["url"])
        self.addCleanup(clients.keep, 0)
        clients.add(6)
        self.until_has(3)
        before = [replica["pid"] for replica in self.service()["replicas"]]
        os.kill(left["pid"], signal.SIGKILL)
        self.until("the state is free", self.is_free)
        clients.keep(0)
        with open(self.path("pipeline.lua"), "a") as script:
            script.write("-- the end\n")
        again = self.detached("resume", "prod", "--code", "new", "--front-lease", "10m")
        self.addCleanup(self.flow, "stop", again["run"])
        self.until_has(1)
        self.assertIn(self.service()["replicas"][0]["pid"], before)
        self.until("the others have ended", lambda: sum(os.path.exists("/proc/%d" % pid) for pid in before) == 1)
        self.assertEqual(clients.failures, [])

    def test_requests_that_are_rejected_are_a_load_whatever_the_target_is(self):
        run, clients = self.serve(queue="1", target="10m")
        clients.add(6)
        self.until_has(3)
        clients.keep(0)
        self.assertEqual(set(clients.failures), {429})
        self.ends(run)


if __name__ == "__main__":
    main()
