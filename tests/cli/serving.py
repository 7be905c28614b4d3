#!/usr/bin/env python3
"""A serving run reports its address to other processes, logs the failures of its service, and answers accepted requests
when it ends.

usage: serving.py --flow BIN [TEST...]
"""
import glob
import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

PRIVILEGED = 999  # a port
SCRIPT = r'''
local flow = require "flow"
local double = flow.service("double", { port = 0, batch = { max = 4 } }, function(ctx)
  return { predict = function(inputs)
    if inputs.x[1] == 13 then error("thirteen is not served") end
    return { y = inputs.x * 2 }
  end }
end)
local count = flow.task("count", function() return 3 end)
return flow.pipeline("serving", {}, function()
  double()
  return count()
end)
'''


PATH = "/v2/models/double/infer"
CLIENTS = 6


def body_of(number):
    return json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [number]}]}).encode()


def fetch(url, body=None):
    try:
        with urllib.request.urlopen(url, body, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def infer(url, number):
    return fetch(url + PATH, body_of(number))


class LoadingClient(threading.Thread):
    """Sends requests until a new connection is refused. `failures` is what a user of the service would call a failed
    request."""

    def __init__(self, port):
        super().__init__()
        self.port, self.answered, self.failures = port, 0, []

    def run(self):
        try:
            while True:
                self.use_connection()
        except ConnectionRefusedError:
            pass
        except (OSError, http.client.HTTPException) as error:
            self.failures.append(repr(error))

    def use_connection(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.connect()
        while connection.sock is not None:  # http.client closes it after `Connection: close`
            connection.request("POST", PATH, body_of(self.answered))
            answer = connection.getresponse()
            result = json.loads(answer.read())
            if answer.status != 200 or result["outputs"][0]["data"] != [2 * self.answered]:
                self.failures.append((answer.status, result))
            self.answered += 1


class Serving(Place):
    def serve(self, script, *words):
        self.write("pipeline.lua", script)
        run = self.start("run", ".", *words)
        self.until("it serves", lambda: any(each.get("url") for each in self.runs()))
        return run, self.show()["url"]

    def test_no_request_fails_when_ctrl_c_ends_the_service(self):
        run, url = self.serve(SCRIPT.replace("== 13", "== -1"))
        self.end_without_failures(run, self.loading_clients(url))

    def loading_clients(self, url):
        """Clients that have answers and go on."""
        clients = [LoadingClient(int(url.rsplit(":", 1)[1])) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        self.until_answered(clients)
        return clients

    def until_answered(self, clients, more=20):
        """Waits until each client has so many more answers, or has failed."""
        wanted = [client.answered + more for client in clients]
        self.until("all clients have answers", lambda: all(client.answered >= each or not client.is_alive()
                                                           for client, each in zip(clients, wanted)))

    def end_without_failures(self, run, clients):
        """Ends the run by Ctrl-C. No request failed until then."""
        run.send_signal(signal.SIGINT)
        for client in clients:
            client.join()
        self.exits(0, self.end(run))
        self.assertEqual([client.failures for client in clients], [[]] * CLIENTS)
        self.assertEqual(self.show()["status"], "succeeded")

    def replica_pid(self):
        """The process of the only replica."""
        records = glob.glob(os.path.join(self.state, "scratch", "slots", "*.replica"))
        return int(os.path.basename(records[0]).split(".")[0]) if len(records) == 1 else None

    def front_pid(self):
        files = glob.glob(os.path.join(self.state, "fronts", "*", "front.pid"))
        return int(self.read(files[0])) if len(files) == 1 else None

    def resume(self, attempt):
        """Resumes the run; its service is up with this attempt."""
        run = self.start("resume", "last", "--serve-for", "600s")

        def is_up():
            service = self.tasks()["double"]
            return service["attempts"] == attempt and service.get("url")
        self.until("it serves", is_up)
        return run

    def test_no_request_fails_when_flow_is_killed_and_the_run_is_resumed(self):
        run, url = self.serve(SCRIPT.replace("== 13", "== -1"))
        clients = self.loading_clients(url)
        replica, front = self.replica_pid(), self.front_pid()
        for attempt in (2, 3):
            self.kill(run)
            self.assertEqual(self.show()["status"], "interrupted")
            self.until_answered(clients)  # without an engine
            self.good("gc")  # opens the state
            self.until_answered(clients)
            run = self.resume(attempt)
            self.assertEqual((self.show()["url"], self.replica_pid(), self.front_pid()), (url, replica, front))
            self.until_answered(clients)
        self.end_without_failures(run, clients)
        self.assertEqual((self.replica_pid(), self.front_pid()), (None, None))

    def test_an_adopted_service_logs_to_its_new_attempt(self):
        run, url = self.serve(SCRIPT, "--serve-for", "600s")
        self.kill(run)
        run = self.resume(2)
        self.assertEqual(infer(url, 13)[0], 500)
        self.until("it is logged", lambda: "thirteen is not served" in self.good("logs", "last", "double").out)
        run.send_signal(signal.SIGINT)
        self.exits(0, self.end(run))

    def test_no_request_fails_when_the_process_of_a_service_is_killed(self):
        run, url = self.serve(SCRIPT.replace("== 13", "== -1").replace("port = 0", "port = 0, retries = 3"))
        clients = self.loading_clients(url)
        replica, front = self.replica_pid(), self.front_pid()
        os.kill(replica, signal.SIGKILL)
        self.until("another replica serves", lambda: self.replica_pid() not in (None, replica))
        self.until_answered(clients)
        self.assertEqual((self.show()["url"], self.front_pid()), (url, front))
        self.end_without_failures(run, clients)

    def test_a_killed_front_listens_again_at_its_port(self):
        run, url = self.serve(SCRIPT)
        front, replica, began = self.front_pid(), self.replica_pid(), time.monotonic()
        os.kill(front, signal.SIGKILL)

        def is_back():
            try:
                return infer(url, 4)[0] == 200
            except OSError:
                return False
        self.until("it listens again", is_back)
        took = time.monotonic() - began
        self.assertLess(took, 1)
        self.assertNotEqual(self.front_pid(), front)
        self.assertEqual(self.replica_pid(), replica)
        run.send_signal(signal.SIGINT)
        self.exits(0, self.end(run))

    def test_the_timeout_of_a_service_is_that_of_its_requests(self):
        run, url = self.serve(SCRIPT.replace("port = 0", 'port = 0, timeout = "300ms"')
                              .replace('error("thirteen is not served")', "while true do end"), "--grace", "1s")
        self.assertEqual(infer(url, 4)[0], 200)
        self.assertEqual(fetch(url + "/v2/health/ready"), (200, {"ready": True}))
        late = {"error": "the request was not answered within 300ms"}
        self.assertEqual(infer(url, 13), (504, late))
        self.assertEqual(infer(url, 4), (504, late))  # predict hangs
        self.until("the call is logged", lambda: "`predict`" in self.good("logs", "last", "double").out)
        self.assertEqual(self.good("logs", "last", "double").out.count(
            "a call of `predict` takes longer than the `timeout` of 300ms"), 1)
        self.assertEqual(fetch(url + "/v2/health/ready"), (503, {"ready": False}))
        self.assertEqual(fetch(url + "/v2/health/live"), (200, {"live": True}))
        self.assertEqual(self.show()["status"], "serving")
        run.send_signal(signal.SIGINT)
        self.exits(0, self.end(run))

    def test_a_call_that_outlasts_the_grace_of_a_stop_is_answered(self):
        run, url = self.serve(SCRIPT.replace('error("thirteen is not served")', "while true do end"), "--grace", "1s")
        answers = []
        asker = threading.Thread(target=lambda: answers.append(infer(url, 13)))
        asker.start()
        self.addCleanup(asker.join)
        self.until("predict runs", lambda: [each["status"] for each in self.flow("services", "--json").lines()[0]["replicas"]] == ["busy"])
        run.send_signal(signal.SIGINT)
        self.exits(0, self.end(run))
        asker.join()
        self.assertEqual(answers[0][0], 503)
        self.assertIn("stopped at the end of the `--grace`", answers[0][1]["error"])

    def test_the_url_of_a_serving_run_is_shown_and_its_failures_are_logged(self):
        run, url = self.serve(SCRIPT, "--serve-for", "600s")
        shown = self.show()
        self.assertRegex(url, r"\Ahttp://127\.0\.0\.1:[0-9]+\Z")
        self.assertEqual({task["name"]: task.get("url") for task in shown["tasks"]}, {"double": url, "count": None})
        self.assertEqual([each["url"] for each in self.runs()], [url])
        self.assertIn("serves at " + url, self.good("ls").out)
        self.assertIn("serves at " + url, self.good("show").out)
        for words in (["last"], ["last", "double"]):
            self.assertIn("`double` serves at %s: attempt 1" % url, self.good("why", *words).out)
            self.assertEqual(json.loads(self.good("why", *words, "--json").out)["url"], url)
        self.assertNotIn("url", json.loads(self.good("why", "last", "count", "--json").out))

        self.assertEqual(infer(url, 4)[1]["outputs"][0]["data"], [8])
        self.assertEqual(infer(url, 13)[0], 500)
        self.until("it is logged", lambda: "thirteen is not served" in self.good("logs", "last", "double").out)
        self.assertIn("request failed: ", self.good("logs", "last", "double").out)

        # Nothing serves after the run has ended, or after the end of its flow.
        self.kill(run)
        self.assertEqual(self.show()["status"], "interrupted")
        for out in (self.good("ls", "--json").out, self.good("show", "--json").out, self.good("why", "--json").out):
            self.assertNotIn('"url":"http', out)

    def test_a_long_error_of_predict_is_cut_and_a_result_without_tensors_is_named(self):
        run, url = self.serve(SCRIPT.replace('error("thirteen is not served")', 'error(string.rep("x", 100000))')
                              .replace("return { y = inputs.x * 2 }", 'return { y = "text" }'), "--serve-for", "600s")
        status, long = infer(url, 13)
        self.assertEqual(status, 500)
        self.assertLess(len(long["error"]), 4200)
        self.assertRegex(long["error"], "x… \\([0-9]+ bytes more\\)$")
        self.assertEqual(infer(url, 4), (500, {"error": "`predict` of `double` returned a table whose entry `y` is a string: it "
                                               "must return a table of tensors by name, such as { y = inputs.x * 2 }"}))
        self.until("it is logged", lambda: "whose entry `y`" in self.good("logs", "last", "double").out)
        self.assertLess(len(self.good("logs", "last", "double").out), 10000)
        run.send_signal(signal.SIGINT)
        self.exits(0, self.end(run))

    def test_a_service_of_a_run_that_has_ended_is_not_retried(self):
        self.write("pipeline.lua", SCRIPT)
        self.good("run", ".", "--serve-for", "1s")
        for verb in (["retry", "last", "double"], ["retry", "last", "double", "--serve-for", "1s"]):
            self.exits(2, self.flow(*verb), "`double` is a service", "start a new run")
        self.assertEqual(self.show()["status"], "succeeded")

    def test_an_unavailable_port_is_an_error_with_one_cause(self):
        taken = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(taken.close)
        port = taken.getsockname()[1]
        self.write("pipeline.lua", SCRIPT.replace("port = 0", "port = %d" % port))
        self.exits(1, self.flow("run", "."))
        self.assertEqual(self.tasks()["double"]["error"],
                         "pipeline.lua:3: the service `double` cannot listen on port %d of 127.0.0.1: the port is in use. End the program "
                         "that listens there, choose another port, or write `port = 0` for a free one" % port)

    def test_the_error_of_a_privileged_port_says_so(self):
        with open("/proc/sys/net/ipv4/ip_unprivileged_port_start") as file:
            if int(file.read()) <= PRIVILEGED:
                self.skipTest("every user may listen on port %d here" % PRIVILEGED)
        self.write("pipeline.lua", SCRIPT.replace("port = 0", "port = %d" % PRIVILEGED))
        without = ["setpriv", "--bounding-set=-net_bind_service", "--inh-caps=-net_bind_service"] if os.geteuid() == 0 else []
        self.exits(1, self.end(self.start("run", ".", before=without)))
        error = self.tasks()["double"]["error"]
        self.assertIn("pipeline.lua:3: the service `double` cannot listen on port %d of 127.0.0.1: this user may not listen on a port "
                      "that low." % PRIVILEGED, error)
        self.assertNotIn("in use", error)


if __name__ == "__main__":
    main()
