#!/usr/bin/env python3
"""The service of examples/digits beside the same network behind FastAPI and uvicorn, under load.

usage: bench_serve.py --bin FOLDER [--python PYTHON] [--rounds N] [--seconds S] [--connections N...]

FOLDER has flow and http_load (build/release/bin); PYTHON is a Python with fastapi, uvicorn and numpy. One line per
figure: the median of N rounds (default 3) of S seconds (default 2) each, in which both servers alternate. A ratio above
1 means that flow answers more requests per second, or that its p99 is longer.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PATH = "/v2/models/digits/infer"


def until(what, condition, limit_s=120):
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    sys.exit("bench_serve.py: %s did not happen within %d s" % (what, limit_s))


def answers(port):
    try:
        with urllib.request.urlopen("http://127.0.0.1:%d/v2/health/ready" % port, timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.body = os.path.join(folder, "body.json")
        with open(self.body, "w", encoding="ascii") as file:
            pixels = [(7 * i) % 17 for i in range(64)]
            json.dump({"inputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 64], "data": pixels}]}, file)
        self.servers = []

    def program(self, name):
        return os.path.join(os.path.abspath(self.options.bin), name)

    def start_flow(self):
        state = os.path.join(self.folder, "state")
        self.servers.append(subprocess.Popen(
            [self.program("flow"), "run", os.path.join(ROOT, "examples/digits"), "--state", state, "--quiet", "--param", "epochs=2",
             "--serve-for", "1h"], stdout=subprocess.DEVNULL))

        def port():
            shown = subprocess.run([self.program("flow"), "show", "--state", state, "--json"], capture_output=True, check=False)
            try:
                url = json.loads(shown.stdout).get("url")
            except ValueError:
                return None
            return url and int(url.rsplit(":", 1)[1])
        return until("the start of the service", port)

    def start_uvicorn(self):
        port = free_port()
        self.servers.append(subprocess.Popen([self.options.python, os.path.join(HERE, "peers/serve_uvicorn.py"), str(port)]))
        until("the start of uvicorn", lambda: answers(port))
        return port

    def load(self, port, connections):
        command = [self.program("http_load"), str(port), str(connections), str(self.options.seconds), PATH, self.body]
        words = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()
        return {name: float(value) for name, value in zip(words[::2], words[1::2])}

    def compare(self, ports, connections):
        rounds = {name: [] for name in ports}
        for _ in range(self.options.rounds):
            for name, port in ports.items():
                rounds[name].append(self.load(port, connections))
        for figure in ("requests_per_s", "p99_us"):
            values = {name: statistics.median(each[figure] for each in loads) for name, loads in rounds.items()}
            line = "digits_%s_%d %.0f" % (figure, connections, values["flow"])
            if "uvicorn" in values:
                line += " uvicorn %.0f ratio %.2f" % (values["uvicorn"], values["flow"] / values["uvicorn"])
            print(line, flush=True)
        for name, loads in rounds.items():
            failed = sum(each["failed"] for each in loads)
            if failed:
                print("failed_requests_%s_%d %d" % (name, connections, failed), flush=True)

    def run(self):
        ports = {"flow": self.start_flow()}
        if self.options.python:
            ports["uvicorn"] = self.start_uvicorn()
        for connections in self.options.connections:
            self.compare(ports, connections)

    def end(self):
        for server in self.servers:
            server.terminate()
        for server in self.servers:
            server.wait(60)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n", 1)[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 64, 1000])
    with tempfile.TemporaryDirectory(dir=os.environ.get("FLOW_BENCH_DIR")) as folder:
        bench = Bench(parser.parse_args(), folder)
        try:
            bench.run()
        finally:
            bench.end()


if __name__ == "__main__":
    main()
