#!/usr/bin/env python3
"""The time of requests with large tensors, with memory that the front shares with its replica, and through its socket.

usage: bench_tensors.py --bin FOLDER [--rounds N]

FOLDER has flow (build/release/bin). Two services answer the same requests in turns: one with FLOW_SHARED_TENSORS=0.
One line per figure: the median of N rounds (default 40) in microseconds, the same without shared memory, and their
ratio, below 1 if shared memory is faster. `in` is a batch with small outputs, `out` one with small inputs, `echo` one
with both, and `joined` has 32 requests that become one batch. `cpu` is the time of the processors that the front and
the replica need together.
"""
import argparse
import glob
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

SIZES = {"64K": 64 << 10, "1M": 1 << 20, "19M": 32 * 3 * 224 * 224 * 4}
ROWS = 32
SCRIPT = r'''
local flow = require "flow"
local tensors = flow.service("tensors", { port = 0, batch = { max = 32, wait = "20ms" } }, function(ctx)
  local made = {}
  return { predict = function(inputs)
    if inputs.x then return { y = inputs.x } end
    if inputs.joined then return { y = inputs.joined } end
    if inputs.taken then return { y = inputs.taken[{ 1, 1 }] + flow.zeros { 1 } } end
    local columns = math.tointeger(inputs.columns:max())
    made[columns] = made[columns] or flow.zeros { 32, columns }
    return { y = made[columns] }
  end }
end)
return flow.pipeline("tensors", {}, function() return tensors() end)
'''


def until(what, condition, limit_s=120):
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    sys.exit("bench_tensors.py: %s did not happen within %d s" % (what, limit_s))


def request(name, rows, columns, data):
    """A request with one tensor, which asks for a binary answer."""
    head = json.dumps({"inputs": [{"name": name, "datatype": "FP32", "shape": [rows, columns],
                                   "parameters": {"binary_data_size": len(data)}}],
                       "parameters": {"binary_data_output": True}}).encode()
    return b"POST /v2/models/tensors/infer HTTP/1.1\r\nHost: localhost\r\nInference-Header-Content-Length: %d\r\n" \
        b"Content-Length: %d\r\n\r\n" % (len(head), len(head) + len(data)) + head + data


def nanoseconds_of(pid):
    """The time that its threads have run."""
    total = 0
    for task in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/schedstat" % (pid, task), encoding="ascii") as file:
            total += int(file.read().split()[0])
    return total


class Service:
    def __init__(self, program, folder, variables):
        self.state = os.path.join(folder, "state")
        os.makedirs(folder)
        script = os.path.join(folder, "pipeline.lua")
        with open(script, "w", encoding="ascii") as file:
            file.write(SCRIPT)
        self.process = subprocess.Popen([program, "run", script, "--state", self.state, "--quiet"], stdout=subprocess.DEVNULL,
                                        env={**os.environ, **variables})

        def service():
            shown = subprocess.run([program, "services", "--state", self.state, "--json"], capture_output=True, check=False)
            lines = shown.stdout.splitlines()
            return json.loads(lines[0]) if lines and b'"serving"' in lines[0] else None
        shown = until("the start of the service", service)
        self.port = int(shown["url"].rsplit(":", 1)[1])
        [front] = glob.glob(os.path.join(self.state, "**", "front.pid"), recursive=True)
        with open(front, encoding="ascii") as file:
            self.pids = [int(file.read()), shown["replicas"][0]["pid"]]
        self.connections = []
        self.buffer = bytearray(1 << 25)

    def disconnect(self):
        for connection in self.connections:
            connection.close()
        self.connections.clear()

    def connect(self, count):
        while len(self.connections) < count:
            self.connections.append(socket.create_connection(("127.0.0.1", self.port)))
            self.connections[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def read(self, connection):
        """Reads an answer, and returns how many bytes its body has."""
        view, filled, end = memoryview(self.buffer), 0, -1
        while end < 0 or filled < end:
            got = connection.recv_into(view[filled:])
            if got == 0:
                sys.exit("bench_tensors.py: the service closed a connection")
            filled += got
            if end < 0 and b"\r\n\r\n" in self.buffer[:filled]:
                head = bytes(self.buffer[:filled]).split(b"\r\n\r\n", 1)[0]
                if b" 200 " not in head.split(b"\r\n", 1)[0]:
                    sys.exit("bench_tensors.py: %r" % bytes(self.buffer[:filled]))
                length = int(head.split(b"\r\nContent-Length: ")[1].split(b"\r\n")[0])
                end = len(head) + 4 + length
        return length

    def cpu_us(self):
        return sum(map(nanoseconds_of, self.pids)) / 1e3

    def time(self, requests):
        """Microseconds from the first byte of the requests to the last one of their answers, and those of processors."""
        self.connect(len(requests))
        cpu, begin = self.cpu_us(), time.perf_counter()
        for connection, each in zip(self.connections, requests):
            connection.sendall(each)
        for connection, _ in zip(self.connections, requests):
            self.read(connection)
        end = time.perf_counter()
        return (end - begin) * 1e6, self.cpu_us() - cpu

    def end(self):
        self.process.terminate()
        self.process.wait(60)


def compare(services, rounds, name, requests):
    times = {each: [] for each in services}
    for service in services.values():
        service.disconnect()  # those of the last figure may have been idle for too long
    for each in range(rounds + 3):
        for which, service in services.items():
            figures = service.time(requests)
            if each >= 3:  # the first ones make the memory
                times[which].append(figures)
    for index, kind in enumerate(("", "cpu_")):
        shared, socket_ = (statistics.median(figures[index] for figures in times[which]) for which in ("shared", "socket"))
        print("tensors_%s_%sus %.0f socket %.0f ratio %.2f" % (name, kind, shared, socket_, shared / socket_), flush=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n", 1)[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    program = os.path.join(os.path.abspath(options.bin), "flow")
    with tempfile.TemporaryDirectory(dir=os.environ.get("FLOW_BENCH_DIR")) as folder:
        services = {"shared": Service(program, os.path.join(folder, "shared"), {}),
                    "socket": Service(program, os.path.join(folder, "socket"), {"FLOW_SHARED_TENSORS": "0"})}
        try:
            for label, size in SIZES.items():
                columns = size // ROWS // 4
                data, row = bytes(size), bytes(size // ROWS)
                small = struct.pack("<f", columns) * ROWS
                for name, requests in (("in", [request("taken", ROWS, columns, data)]),
                                       ("out", [request("columns", ROWS, 1, small)]),
                                       ("echo", [request("x", ROWS, columns, data)]),
                                       ("joined", [request("joined", 1, columns, row)] * ROWS)):
                    compare(services, options.rounds, "%s_%s" % (name, label), requests)
        finally:
            for service in services.values():
                service.end()


if __name__ == "__main__":
    main()
