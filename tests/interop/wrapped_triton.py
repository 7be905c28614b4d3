#!/usr/bin/env python3
"""Triton 2.51 behind flow's front: Triton's own client, a large tensor, keys and TLS, replicas, a new version, deaths.

usage: wrapped_triton.py --flow BIN --build FOLDER [TEST...]

nvidia-pytriton (Triton and its backend for Python, 55 MB) and tritonclient are installed once from PyPI into a folder next to
the build; exit 77 if that fails. Needs Python 3.8 to 3.13, whose library Triton loads.
"""
import glob
import gzip
import json
import os
import shutil
import signal
import struct
import subprocess
import sys

from wrapped_place import LIMIT_S, Load, Server, WrappedPlace, place, timed
from python_packages import python_with  # of tests/fetch
from triton_server import PACKAGES

SKIP = 77
INSTALLED = {}

PIPELINE = r'''
local flow = require "flow"
local triton = flow.service("triton", { OPTIONS
  ready = "/v2/health/ready", start_timeout = "2m", args = { "models", "backends" },
  env = { LD_LIBRARY_PATH = "LIBRARIES", PATH = "BIN:/usr/bin:/bin" },
  command = [[exec SERVER --model-repository={models} --backend-directory={backends} --http-address=127.0.0.1 --http-port={port} \
    --allow-grpc=false --allow-metrics=false --exit-timeout-secs=5]] })
return flow.pipeline("triton", {}, function() return { triton = triton("FOLDER/models", "FOLDER/backends") } end)
'''

MODEL = r'''
name: "add"
backend: "python"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU } ]
'''
CODE = r'''
import os
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        START

    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("y", pb.get_input_tensor_by_name(each, "x").as_numpy() + ADDED)])
                for each in requests]
'''
CLIENT = r'''
import sys
import numpy
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

client = http.InferenceServerClient(sys.argv[1])
headers = {"Authorization": "Bearer " + sys.argv[2]} if len(sys.argv) > 2 else {}
assert client.is_server_live(headers) and client.is_server_ready(headers) and client.is_model_ready("add", headers=headers)
assert client.get_server_metadata(headers=headers)["name"] == "triton"
assert client.get_model_metadata("add", headers=headers)["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1]}]
large = numpy.random.default_rng(1).standard_normal(8_000_000, dtype=numpy.float32)
for array in (numpy.arange(4, dtype=numpy.float32), large):
    for compression in (None, "gzip"):
        if compression and array is large:
            continue
        given = http.InferInput("x", array.shape, "FP32")
        given.set_data_from_numpy(array, binary_data=True)
        result = client.infer("add", [given], request_id="7", headers=dict(headers), outputs=[http.InferRequestedOutput("y", binary_data=True)],
                              request_compression_algorithm=compression, response_compression_algorithm=compression)
        assert result.get_response()["id"] == "7" and numpy.array_equal(result.as_numpy("y"), array + 1)
try:
    client.infer("absent", [given], headers=headers)
    raise AssertionError("an absent model answers")
except InferenceServerException as error:
    assert "unknown model" in str(error), error
print("tritonclient is content")
'''


def request(*numbers):
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [len(numbers)], "data": list(numbers)}]}


class TritonPlace(WrappedPlace):
    def setUp(self):
        super().setUp()
        shutil.copytree(os.path.join(INSTALLED["triton"], "backends"), self.path("backends"))
        shutil.copy(INSTALLED["stub"], self.path("backends", "python"))
        self.model(added=1)

    def model(self, added, start="pass"):
        os.makedirs(self.path("models", "add", "1"), exist_ok=True)
        self.write("models/add/config.pbtxt", MODEL)
        self.write("models/add/1/model.py", CODE.replace("ADDED", str(added)).replace("START", start))

    def script(self, options=""):
        text = PIPELINE.replace("OPTIONS", options).replace("FOLDER", self.folder)
        for name in ("SERVER", "LIBRARIES", "BIN"):
            text = text.replace(name, INSTALLED[name.lower()])
        self.write("pipeline.lua", text)

    def sum_of(self, server, x=2.5):
        answer = server.ask("POST", "/v2/models/add/infer", request(x))
        return answer.json()["outputs"][0]["data"][0] if answer.status == 200 else answer.status

    def client(self, *words):
        done = subprocess.run([INSTALLED["python"], "-c", CLIENT, *words], capture_output=True, text=True, timeout=LIMIT_S)
        self.assertEqual((done.returncode, done.stdout), (0, "tritonclient is content\n"), done.stderr[-2000:])


class TritonServer(TritonPlace):
    def test_answers_are_those_of_triton_itself_and_its_client_is_content(self):
        self.script()
        run = self.serve()
        front = self.front()
        (port,) = self.server_ports().values()
        itself = Server("http://127.0.0.1:%d" % port)
        numbers = struct.pack("<3f", 1, 2, 3)
        head = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "parameters": {"binary_data_size": 12}}],
                           "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}).encode()
        binary = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
        packed = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        cases = [("GET", "/v2", None, {}), ("GET", "/v2/models/add", None, {}), ("GET", "/v2/models/add/config", None, {}),
                 ("POST", "/v2/repository/index", b"{}", {}), ("GET", "/v2/health/ready", None, {}), ("HEAD", "/v2/health/live", None, {}),
                 ("POST", "/v2/models/add/infer", request(1, 2), {}), ("POST", "/v2/models/add/infer", b"{", {}),
                 ("POST", "/v2/models/add/infer", head + numbers, binary), ("GET", "/absent", None, {}),
                 ("POST", "/v2/models/add/infer", gzip.compress(json.dumps(request(5)).encode()), packed),
                 ("POST", "/v2/models/absent/infer", request(1), {}), ("GET", "/v2/models/add/infer", None, {})]
        for case in cases:
            ours, theirs = front.ask(*case), itself.ask(*case)
            self.assertEqual((ours.status, ours.body), (theirs.status, theirs.body), case)
            for name in ("Content-Type", "Inference-Header-Content-Length", "Content-Length", "Content-Encoding"):
                self.assertEqual(ours.fields.get(name), theirs.fields.get(name), (case, name))
        self.client("127.0.0.1:%d" % front.port)
        self.ends(run)

    def test_keys_and_tls_are_the_fronts(self):
        authorities = self.certificate()
        self.env["API_KEYS"] = "first-key-4711"
        self.script('tls = { cert = "cert.pem", key = "key.pem" }, keys = flow.env("API_KEYS"),')
        run = self.serve()
        self.assertEqual(self.sum_of(self.front(authorities=authorities)), 401)
        self.assertEqual(self.sum_of(self.front(authorities=authorities, key="first-key-4711")), 3.5)
        self.ends(run)


class TritonDeaths(TritonPlace):
    def test_no_inference_is_lost_when_one_of_two_replicas_is_killed(self):
        self.script("replicas = 2, idempotent = true,")
        run = self.serve()
        front = self.front()
        loads = [Load(lambda: self.sum_of(front)) for _ in range(3)]
        for load in loads:
            self.addCleanup(load.end)
        for _ in range(2):
            self.until("requests are answered", lambda: all(load.answers for load in loads))
            killed = sorted(self.server_ports())[0]
            os.kill(killed, signal.SIGKILL)
            self.until("it is replaced", lambda: len(set(self.server_ports()) - {killed}) == 2)
            self.until("both serve", lambda: self.metric(front, "flow_service_replicas") == 2)
        for load in loads:
            load.end()
            self.assertEqual((load.failures, set(load.answers)), ([], {3.5}))
        print("inferences while replicas died: %d" % sum(len(load.answers) for load in loads), flush=True)
        self.ends(run)

    def test_a_new_version_takes_over_without_a_failure(self):
        self.script()
        self.good("run", ".", "--name", "prod", "--detach")
        front = self.front("prod")
        load = Load(lambda: self.sum_of(front))
        self.addCleanup(load.end)
        self.until("it answers", lambda: load.answers)
        self.model(added=10)
        self.good("run", ".", "--name", "prod", "--detach")
        self.until("the new version answers", lambda: load.answers[-1] == 12.5)
        load.end()
        self.assertEqual((load.failures, sorted(load.answers)), ([], load.answers))
        self.assertEqual(set(load.answers), {3.5, 12.5})
        self.good("stop", "prod")
        self.until("no server is left", lambda: not self.server_ports())

    def test_triton_goes_on_when_flow_is_killed_and_the_run_is_resumed(self):
        self.script()
        run = self.serve()
        front, before = self.front(), self.server_ports()
        self.kill(run)
        self.assertEqual(self.sum_of(front), 3.5)
        run = self.resume()
        self.assertEqual((self.server_ports(), self.sum_of(front)), (before, 3.5))
        self.ends(run)
        self.until("no server is left", lambda: not self.server_ports())

    def test_a_model_that_cannot_be_loaded_fails_the_start_with_its_reason(self):
        self.script()
        self.model(added=1, start='raise RuntimeError("the weights are gone")')
        done = self.exits(1, self.flow("run", "."), "`triton` ended with exit code 1")
        self.assertIn("the weights are gone", done.out + done.err + self.good("logs", "last", "triton").out)
        self.assertEqual(self.server_ports(), {})


def main():
    arguments = sys.argv[1:]
    at = arguments.index("--build")
    build = arguments[at + 1]
    sys.argv[1:] = arguments[:at] + arguments[at + 2:]
    python, why = timed("packages", lambda: python_with(build, PACKAGES, ["pytriton", "tritonclient.http", "tritonclient.grpc"], "triton-python"))
    if python is None:
        print("skipped: " + why)
        sys.exit(SKIP)
    done = subprocess.run([python, "-c", "import pytriton, sys; print(pytriton.__path__[0], '%d.%d' % sys.version_info[:2])"],
                          capture_output=True, text=True, check=True)
    home, version = done.stdout.split()
    triton = os.path.join(home, "tritonserver")
    stub = os.path.join(triton, "python_backend_stubs", version, "triton_python_backend_stub")
    libraries = glob.glob(os.path.join(os.path.dirname(home), "nvidia_pytriton.libs"))
    server = os.path.join(triton, "bin", "tritonserver")
    for needed in (stub, server):
        linked = os.path.exists(needed) and subprocess.run(["ldd", needed], capture_output=True, text=True,
                                                           env=dict(os.environ, LD_LIBRARY_PATH=":".join(libraries))).stdout
        if not linked or "not found" in linked:
            print("skipped: this machine cannot run %s: %s" % (needed, linked or "it does not exist"))
            sys.exit(SKIP)
    INSTALLED.update(python=python, triton=triton, stub=stub, server=server, libraries=libraries[0], bin=os.path.dirname(python))
    place.main()


if __name__ == "__main__":
    main()
