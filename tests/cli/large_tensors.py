#!/usr/bin/env python3
"""Requests with tensors of several MiB, which a front and its replica pass through shared memory.

usage: large_tensors.py --flow BIN [TEST...]

FLOW_LOAD_CLIENTS (4) is the number of clients of the load.
"""
import array
import contextlib
import http.client
import json
import os
import signal
import sys
import threading
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

CLIENTS = int(os.environ.get("FLOW_LOAD_CLIENTS", "4"))
MEMORY = "memfd:flow-tensors"
# It keeps each request's tensor until the next call, and changes it in place there.
SCRIPT = r'''
local flow = require "flow"
local keep = flow.service("keep", { port = 0, replicas = REPLICAS, batch = { max = 4 } }, function(ctx)
  local last = flow.zeros { 1, 1 }
  return { predict = function(inputs)
    local x, before = inputs.x, last
    last = x
    before:add_(1)
    if inputs.x:size(2) == 1 then return { y = before } end
    return { y = x * 2 }
  end }
end)
return flow.pipeline("tensors", {}, function() return keep() end)
'''


def request_of(numbers):
    """The body of a request with one row, and its header fields."""
    data = array.array("f", numbers).tobytes()
    head = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, len(numbers)],
                                   "parameters": {"binary_data_size": len(data)}}],
                       "parameters": {"binary_data_output": True}}).encode()
    return head + data, {"Inference-Header-Content-Length": str(len(head))}


def ask(connection, numbers):
    """The numbers of the answer."""
    connection.request("POST", "/v2/models/keep/infer", *request_of(numbers))
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise AssertionError((answer.status, body[:500]))
    found = array.array("f")
    found.frombytes(body[int(answer.headers["Inference-Header-Content-Length"]):])
    return found


class Client(threading.Thread):
    """Sends requests of 1 MiB until `stop` is set."""

    def __init__(self, port, number, stop):
        super().__init__(daemon=True)
        self.port, self.stop = port, stop
        self.numbers = [number + each % 7 for each in range(1 << 18)]
        self.wanted = array.array("f", [2 * each for each in self.numbers])
        self.answered, self.failures = 0, []

    def run(self):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)) as connection:
            self.load(connection)

    def load(self, connection):
        while not self.stop.is_set() and not self.failures:
            try:
                if ask(connection, self.numbers) != self.wanted:
                    self.failures.append("another answer")
                self.answered += 1
            except (AssertionError, OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))


class LargeTensors(Place):
    def serve(self, replicas=1, **env):
        self.write("pipeline.lua", SCRIPT.replace("REPLICAS", str(replicas)))
        run = self.start("run", ".", **env)
        self.until("it serves", lambda: run.poll() is not None or any(each["status"] == "serving" for each in self.runs()))
        self.assertIsNone(run.poll(), "flow ended")
        [service] = self.services()
        return run, urllib.parse.urlsplit(service["url"]).port

    def services(self):
        return self.good("services", "--json").lines()

    def pids(self):
        [service] = self.services()
        return {replica["pid"] for replica in service["replicas"] if replica.get("pid")}

    def stop(self, run):
        run.send_signal(signal.SIGINT)
        self.exits(0, self.end(run))

    def shared_memory(self):
        """How many pieces of it the replica has mapped."""
        [pid] = self.pids()
        with open("/proc/%d/maps" % pid, encoding="utf-8") as file:
            return file.read().count(MEMORY)

    def check_answers(self, port):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
            self.check_numbers(connection)

    def check_numbers(self, connection):
        for number in range(12):
            size = 1_500_000 if number % 3 else 50_000
            numbers = [number + each % 5 for each in range(size)]
            self.assertEqual(ask(connection, numbers), array.array("f", [2 * each for each in numbers]))
            # What predict kept is unchanged, though the front has used the memory again.
            self.assertEqual(ask(connection, [0]), array.array("f", [each + 1 for each in numbers]))

    def test_large_tensors_are_answered_and_what_predict_keeps_stays_as_it_was(self):
        run, port = self.serve()
        self.assertEqual(self.shared_memory(), 0)
        self.check_answers(port)
        self.assertGreater(self.shared_memory(), 0)
        self.stop(run)

    def test_the_answers_are_the_same_without_shared_memory(self):
        run, port = self.serve(FLOW_SHARED_TENSORS="0")
        self.check_answers(port)
        self.assertEqual(self.shared_memory(), 0)
        self.stop(run)

    def test_no_request_fails_while_each_replica_is_killed(self):
        run, port = self.serve(replicas=2)
        stop = threading.Event()
        clients = [Client(port, number, stop) for number in range(CLIENTS)]
        for client in clients:
            client.start()

        def until_answered(more):
            before = [client.answered for client in clients]
            self.until("all clients get answers", lambda: all(
                client.failures or client.answered >= count + more for client, count in zip(clients, before)))
        for pid in self.pids():
            until_answered(5)
            os.kill(pid, signal.SIGKILL)
            self.until("it is replaced", lambda: len(self.pids()) == 2 and pid not in self.pids())  # pylint: disable=cell-var-from-loop
        until_answered(5)
        stop.set()
        for client in clients:
            client.join()
        self.assertEqual([client.failures for client in clients], [[]] * CLIENTS)
        self.stop(run)


if __name__ == "__main__":
    main()
