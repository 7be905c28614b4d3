#!/usr/bin/env python3
"""A client of the Open Inference Protocol over gRPC by others uses a server and a service unchanged: tritonclient.

usage: grpc_clients.py --service BIN --build FOLDER [--flow BIN]

The service is tests/serve/grpc/service.cc: it adds one to each f32; with --flow, a pipeline does the same. tritonclient is installed once from PyPI into a folder next
to the build; exit 77 if that fails.
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "fetch"))
from python_packages import python_with  # noqa: E402

SKIP = 77
LIMIT_S = 120

PIPELINE = r'''
local flow = require "flow"
local adder = flow.service("adder", { grpc = 0, keys = flow.env("API_KEYS"), batch = { max = 8 } }, function(ctx)
  return { predict = function(inputs, request)
    if inputs.boom then error("boom: predict failed") end
    local answers = {}
    for i, each in ipairs(request.requests) do answers[i] = { parameters = each.parameters } end
    return { x = inputs.x.dtype == "f32" and inputs.x + 1 or inputs.x }, { parameters = { model = "v3" }, requests = answers }
  end }
end)
return flow.pipeline("clients", {}, function() adder() end)
'''

TRITON = r'''
import queue
import sys
import numpy
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

KEY = {"authorization": "Bearer secret"}
client = grpc.InferenceServerClient("127.0.0.1:" + sys.argv[1])
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("adder")
server = client.get_server_metadata(headers=KEY)
assert server.name == "flow" and "statistics" in server.extensions
is_fake = sys.argv[2] == "fake"  # its tensors, batches and times are known
metadata = client.get_model_metadata("adder", headers=KEY)
assert metadata.name == "adder"
assert not is_fake or [(x.name, x.datatype, list(x.shape)) for x in metadata.inputs] == [("x", "FP32", [-1, 2])]
config = client.get_model_config("adder", headers=KEY, as_json=True)["config"]
assert config["name"] == "adder"
assert not is_fake or config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": ["2"]}] and config["max_batch_size"] == 8, config
index = client.get_model_repository_index(headers=KEY)
assert [(m.name, m.version, m.state) for m in index.models] == [("adder", "1", "READY")]
statistics = client.get_inference_statistics("adder", headers=KEY)
assert not is_fake or statistics.model_stats[0].inference_stats.success.ns == 1000


def given(array, datatype="FP32", name="x"):
    tensor = grpc.InferInput(name, array.shape, datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def refused(code, text, call):
    try:
        call()
    except InferenceServerException as error:
        assert code in str(error.status()) and text in str(error), error
    else:
        raise AssertionError("%s was not refused" % text)


x = numpy.arange(8, dtype=numpy.float32).reshape(2, 4)
large = numpy.random.default_rng(1).standard_normal((1_000_000, 4), dtype=numpy.float32)
for array in (x, large):
    result = client.infer("adder", [given(array)], request_id="7", outputs=[grpc.InferRequestedOutput("x")], headers=KEY)
    assert result.get_response().id == "7" and numpy.array_equal(result.as_numpy("x"), array + 1)
for datatype in "BOOL UINT8 INT32 INT64 FP64 INT8 INT16 UINT16 UINT32 UINT64 FP16".split():
    array = numpy.array([[0, 1], [1, 100]]).astype(triton_to_np_dtype(datatype))
    result = client.infer("adder", [given(array, datatype)], headers=KEY)
    assert result.as_numpy("x").astype(array.dtype).tolist() == array.tolist(), datatype

sent = {"word": "é", "count": -7, "half": 0.5, "yes": True}


def answered_parameters(result):
    found = result.get_response().parameters
    return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in found.items()}


if not is_fake:
    result = client.infer("adder", [given(x)], headers=KEY, parameters=sent)
    assert answered_parameters(result) == {**sent, "model": "v3"}, answered_parameters(result)
refused("UNAUTHENTICATED", "needs a key", lambda: client.infer("adder", [given(x)]))
refused("NOT_FOUND", "only `adder`", lambda: client.infer("absent", [given(x)], headers=KEY))
refused("INVALID_ARGUMENT", "no output `y`",
        lambda: client.infer("adder", [given(x)], outputs=[grpc.InferRequestedOutput("y")], headers=KEY))
refused("INTERNAL", "predict failed", lambda: client.infer("adder", [given(x, name="boom")], headers=KEY))
zeros = numpy.zeros((100_000, 4), dtype=numpy.float32)
for algorithm in ("gzip", "deflate"):
    for array in (x, zeros, large):
        result = client.infer("adder", [given(array)], headers=KEY, compression_algorithm=algorithm)
        assert numpy.array_equal(result.as_numpy("x"), array + 1), algorithm
    bomb = numpy.zeros((17 << 20, 1), dtype=numpy.float32)
    refused("RESOURCE_EXHAUSTED", "larger than", lambda: client.infer("adder", [given(bomb)], headers=KEY, compression_algorithm=algorithm))

done = queue.Queue()
for _ in range(8):
    client.async_infer("adder", [given(x)], lambda result, error: done.put((result, error)), headers=KEY)
for _ in range(8):
    result, error = done.get(timeout=60)
    assert error is None and numpy.array_equal(result.as_numpy("x"), x + 1)

client.start_stream(lambda result, error: done.put((result, error)), headers=KEY)
for number in range(100):
    client.async_stream_infer("adder", [given(x + number)], request_id=str(number))
answered = {}
for _ in range(100):
    result, error = done.get(timeout=60)
    assert error is None, error
    assert answered_parameters(result) == {"triton_final_response": True, **({} if is_fake else {"model": "v3"})}
    answered[result.get_response().id] = result.as_numpy("x")
assert all(numpy.array_equal(answered[str(number)], x + number + 1) for number in range(100))
client.async_stream_infer("adder", [given(x, name="boom")])
result, error = done.get(timeout=60)
assert "predict failed" in str(error)
client.stop_stream()
client.start_stream(lambda result, error: done.put((result, error)), headers=KEY, compression_algorithm="gzip")
client.async_stream_infer("adder", [given(zeros)])
result, error = done.get(timeout=60)
assert error is None and numpy.array_equal(result.as_numpy("x"), zeros + 1), error
client.stop_stream()
client.close()
print("tritonclient agrees")
'''


def address_of(flow, state):
    shown = subprocess.run([flow, "logs", "last", "adder", "--state", state], capture_output=True, text=True)
    found = re.search(r"gRPC: 127\.0\.0\.1:(\d+)", shown.stdout)
    return found and found.group(1)


def check_run(flow, python):
    """A run of flow, as a client sees it."""
    with tempfile.TemporaryDirectory(prefix="flow-grpc-clients-") as folder:
        state = os.path.join(folder, "state")
        with open(os.path.join(folder, "pipeline.lua"), "w", encoding="utf-8") as file:
            file.write(PIPELINE)
        run = subprocess.Popen([flow, "run", folder, "--state", state, "--quiet", "--serve-for", "600s"],
                               env={**os.environ, "API_KEYS": "secret"})
        try:
            end = time.monotonic() + LIMIT_S
            while (port := address_of(flow, state)) is None:
                if time.monotonic() > end or run.poll() is not None:
                    sys.exit("the service did not start")
                time.sleep(0.1)
            subprocess.run([python, "-c", TRITON, port, "flow"], check=True, timeout=LIMIT_S)
        finally:
            run.send_signal(signal.SIGINT)
            run.wait(LIMIT_S)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--service", required=True)
    parser.add_argument("--build", required=True)
    parser.add_argument("--flow")
    args = parser.parse_args()
    python, why = python_with(args.build, ["tritonclient[http,grpc]==2.73.0"], ["tritonclient.grpc", "numpy"], "clients-python")
    if python is None:
        print("skipped: " + why)
        return SKIP
    with subprocess.Popen([args.service, "secret"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as service:
        try:
            port = service.stdout.readline().strip()
            subprocess.run([python, "-c", TRITON, port, "fake"], check=True, timeout=LIMIT_S)
        finally:
            service.stdin.close()
            service.wait(LIMIT_S)
    if args.flow and service.returncode == 0:
        check_run(os.path.abspath(args.flow), python)
    return service.returncode


if __name__ == "__main__":
    sys.exit(main())
