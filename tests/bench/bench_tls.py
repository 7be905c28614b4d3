#!/usr/bin/env python3
"""Many TLS connections to a service at the same time: requests go through all of them in turn, with client and front in
processes of their own.

usage: bench_tls.py --bin FOLDER [--connections N] [--idle S]

FOLDER has flow and tls_hold (build/release/bin). One line per figure: rates and times of handshakes and requests over N
connections (default 10000), the same after S seconds (default 5) of silence, and the front's memory. Exit code 1 if a
connection ended, a response was not 200, or the front needed 1 GiB.
"""
import argparse
import glob
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

from serving import Serving

SCRIPT = r'''
local flow = require "flow"
local double = flow.service("double", { port = 0, tls = { cert = "server.pem", key = "server.key" }, batch = { max = 32 } }, function(ctx)
  return { predict = function(inputs) return { y = inputs.x * 2 } end }
end)
return flow.pipeline("tls", {}, function() return double() end)
'''
MIB = 1 << 20


def resident(pid):
    with open("/proc/%d/statm" % pid, encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n", 1)[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--connections", type=int, default=10000)
    parser.add_argument("--idle", type=float, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("FLOW_BENCH_DIR")) as folder:
        with open(os.path.join(folder, "pipeline.lua"), "w", encoding="ascii") as file:
            file.write(SCRIPT)
        with open(os.path.join(folder, "body.json"), "w", encoding="ascii") as file:
            json.dump({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [4]}]}, file)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                        "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", "server.key", "-out", "server.pem"],
                       cwd=folder, check=True, capture_output=True)
        with Serving(options.bin, folder) as service:
            [path] = glob.glob(os.path.join(service.state, "fronts", "*", "front.pid"))
            with open(path, encoding="ascii") as file:
                front = int(file.read())
            before = largest = resident(front)
            client = subprocess.Popen([os.path.join(os.path.abspath(options.bin), "tls_hold"), str(service.port), str(options.connections),
                                       str(options.idle), "/v2/models/double/infer", os.path.join(folder, "body.json")])
            while client.poll() is None:
                largest = max(largest, resident(front))
                time.sleep(0.05)
        print("tls_front_mib %.1f before %.1f kib_per_connection %.1f" % (
            largest / MIB, before / MIB, (largest - before) / 1024 / options.connections), flush=True)
        return 1 if client.returncode != 0 or largest >= 1 << 30 else 0


if __name__ == "__main__":
    sys.exit(main())
