#!/usr/bin/env python3
"""The service of examples/digits beside the same network behind FastAPI and uvicorn, and in Triton's Python backend, under load.

usage: bench_serve.py --bin FOLDER [--uvicorn PYTHON] [--triton PYTHON] [--rounds N] [--seconds S] [--connections N...]

FOLDER has flow and http_load (build/release/bin). The Python of --uvicorn has fastapi, uvicorn and numpy, that of --triton
nvidia-pytriton and numpy. One line per figure: the median of N rounds (default 3) of S seconds (default 2) each, in which
the servers alternate. A ratio above 1 means that flow answers more requests per second, or that its p99 is longer.
"""
import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import tempfile
import urllib.request

from serving import Serving, until

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PATH = "/v2/models/digits/infer"


def answers(port):
    try:
        with urllib.request.urlopen("http://127.0.0.1:%d/v2/health/ready" % port, timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Peer:
    """Another server, which PYTHON runs; ended at the end."""

    def __init__(self, python, script, *words):
        self.port = free_port()
        self.process = subprocess.Popen([python, os.path.join(HERE, "peers", script), str(self.port), *words])

    def __enter__(self):
        try:
            until("the start of the peer", lambda: self.process.poll() is not None or answers(self.port))
            if self.process.poll() is not None:
                raise SystemExit("the peer %s ended" % script)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)


class Bench:
    def __init__(self, options, folder):
        self.options = options
        self.body = os.path.join(folder, "body.json")
        with open(self.body, "w", encoding="ascii") as file:
            pixels = [(7 * i) % 17 for i in range(64)]
            json.dump({"inputs": [{"name": "pixels", "datatype": "FP32", "shape": [1, 64], "data": pixels}]}, file)

    def load(self, port, connections):
        command = [os.path.join(os.path.abspath(self.options.bin), "http_load"), str(port), str(connections), str(self.options.seconds), PATH,
                   self.body]
        words = subprocess.run(command, capture_output=True, check=True, text=True).stdout.split()
        return {name: float(value) for name, value in zip(words[::2], words[1::2])}

    def compare(self, ports, connections):
        rounds = {name: [] for name in ports}
        for _ in range(self.options.rounds):
            for name, port in ports.items():
                rounds[name].append(self.load(port, connections))
        for figure in ("requests_per_s", "p99_us"):
            values = {name: statistics.median(each[figure] for each in loads) for name, loads in rounds.items()}
            line = "digits_%s_%d %.0f" % (figure, connections, values.pop("flow"))
            flow = float(line.split()[1])
            for name, value in values.items():
                line += " %s %.0f ratio %.2f" % (name, value, flow / value if value else 0)
            print(line, flush=True)
        for name, loads in rounds.items():
            failed = sum(each["failed"] for each in loads)
            if failed:
                print("failed_requests_%s_%d %d" % (name, connections, failed), flush=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n", 1)[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--uvicorn")
    parser.add_argument("--triton")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 64, 1000])
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=os.environ.get("FLOW_BENCH_DIR")))
        digits = Serving(options.bin, folder, "--param", "epochs=2", pipeline=os.path.join(ROOT, "examples/digits"))
        ports = {"flow": stack.enter_context(digits).port}
        if options.uvicorn:
            ports["uvicorn"] = stack.enter_context(Peer(options.uvicorn, "serve_uvicorn.py")).port
        if options.triton:
            ports["triton"] = stack.enter_context(Peer(options.triton, "serve_triton.py", os.path.join(folder, "triton"))).port
        bench = Bench(options, folder)
        for connections in options.connections:
            bench.compare(ports, connections)


if __name__ == "__main__":
    main()
