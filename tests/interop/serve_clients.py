#!/usr/bin/env python3
"""Clients of the Open Inference Protocol by others use a service unchanged: tritonclient, and kserve.

usage: serve_clients.py --flow BIN --build FOLDER

tritonclient is installed once from PyPI into a folder next to the build; exit 77 if that fails. kserve is large: its part
runs if $FLOW_KSERVE_PYTHON names a Python that has it.
"""
import argparse
import json
import os
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
local echo = flow.service("echo", { port = 0, batch = { max = 8 } }, function(ctx)
  return { predict = function(inputs, request)
    local answers = {}
    for i, each in ipairs(request.requests) do answers[i] = { parameters = each.parameters } end
    return inputs, { parameters = { model = "v3" }, requests = answers }
  end }
end)
local scale = flow.service("scale", { port = 0, batch = { max = 8 },
  inputs = { x = { "FP32", { -1, 4 } } }, outputs = { y = { "FP32", { -1, 4 } } } }, function(ctx)
  return { predict = function(inputs) return { y = inputs.x * 2 } end }
end)
return flow.pipeline("clients", {}, function()
  echo()
  scale()
end)
'''

TRITON = r'''
import sys
import numpy
import tritonclient.http as http
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

echo, scale = (http.InferenceServerClient(url.split("//")[1], concurrency=4) for url in sys.argv[1:])
for client, name in ((echo, "echo"), (scale, "scale")):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready(name) and client.is_model_ready(name, "1") and not client.is_model_ready("absent")
    assert client.get_model_repository_index() == [{"name": name, "version": "1", "state": "READY", "reason": ""}]
assert "binary_tensor_data" in echo.get_server_metadata()["extensions"]
assert scale.get_model_metadata("scale")["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
assert scale.get_model_config("scale")["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}]


def given(array, datatype, binary, name="x"):
    tensor = http.InferInput(name, array.shape, datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def refused(status, text, call):
    try:
        call()
    except InferenceServerException as error:
        assert str(status) in str(error.status()) and text in str(error), error
    else:
        raise AssertionError("%s was not refused" % text)


x = numpy.arange(8, dtype=numpy.float32).reshape(2, 4)
large = numpy.random.default_rng(1).standard_normal((1000, 4), dtype=numpy.float32)
for binary in (True, False):
    for output in (True, False):
        for array in (x, large):
            for compression in (None, "gzip", "deflate"):
                result = scale.infer("scale", [given(array, "FP32", binary)], request_id="7",
                                     outputs=[http.InferRequestedOutput("y", binary_data=output)],
                                     request_compression_algorithm=compression, response_compression_algorithm=compression)
                assert result.get_response()["id"] == "7"
                assert numpy.array_equal(result.as_numpy("y"), array * 2)
    for request in [scale.async_infer("scale", [given(x, "FP32", binary)]) for _ in range(8)]:
        assert numpy.array_equal(request.get_result().as_numpy("y"), x * 2)
    for datatype in "BOOL UINT8 INT32 INT64 FP32 FP64 INT8 INT16 UINT16 UINT32 UINT64 FP16".split():
        array = numpy.array([[0, 1], [1, 100]]).astype(triton_to_np_dtype(datatype))
        result = echo.infer("echo", [given(array, datatype, binary)], outputs=[http.InferRequestedOutput("x", binary_data=binary)])
        assert result.as_numpy("x").astype(array.dtype).tolist() == array.tolist(), datatype

sent = {"word": "é", "count": -7, "half": 0.5, "yes": True}
for binary in (True, False):
    result = echo.infer("echo", [given(x, "FP32", True)], parameters=sent, outputs=[http.InferRequestedOutput("x", binary_data=binary)])
    assert result.get_response()["parameters"] == {**sent, "model": "v3"}, result.get_response()
assert "parameters" not in scale.infer("scale", [given(x, "FP32", True)]).get_response()
refused(400, "the input `x`", lambda: scale.infer("scale", [given(x.reshape(1, 8), "FP32", True)]))
refused(400, "the input `x`", lambda: scale.infer("scale", [given(x.astype(numpy.float64), "FP64", True)]))
refused(400, "absent", lambda: scale.infer("scale", [given(x, "FP32", True)], outputs=[http.InferRequestedOutput("absent")]))
refused(404, "only `scale`", lambda: scale.infer("absent", [given(x, "FP32", True)]))
refused(404, "no version `2`", lambda: scale.infer("scale", [given(x, "FP32", True)], model_version="2"))
statistics = scale.get_inference_statistics("scale")["model_stats"][0]["inference_stats"]
assert statistics["success"]["count"] == 2 * (2 * 2 * 3 + 8) + 1, statistics
print("tritonclient agrees")
'''

KSERVE = r'''
import asyncio
import sys
import numpy
from kserve import InferInput, InferRequest, InferenceRESTClient, RESTConfig


async def main(url):
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    assert await client.is_server_live(url) and await client.is_server_ready(url) and await client.is_model_ready(url, "scale")
    x = numpy.arange(8, dtype=numpy.float32).reshape(2, 4)
    for binary in (True, False):
        tensor = InferInput("x", [2, 4], "FP32")
        tensor.set_data_from_numpy(x, binary_data=binary)
        response = await client.infer(url, InferRequest("scale", [tensor], request_id="9"), model_name="scale")
        assert response.id == "9" and numpy.array_equal(response.outputs[0].as_numpy(), x * 2)
    await client.close()

asyncio.run(main(sys.argv[2]))
print("kserve agrees")
'''


def urls_of(flow, state):
    shown = subprocess.run([flow, "show", "--state", state, "--json"], capture_output=True, text=True)
    if shown.returncode != 0:
        return None
    urls = {task["name"]: task.get("url") for task in json.loads(shown.stdout)["tasks"]}
    return [urls["echo"], urls["scale"]] if all(urls.get(name) for name in ("echo", "scale")) else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow", required=True)
    parser.add_argument("--build", required=True)
    args = parser.parse_args()
    flow = os.path.abspath(args.flow)
    python, why = python_with(args.build, ["tritonclient[http,grpc]==2.73.0"], ["tritonclient.http", "numpy"], "clients-python")
    if python is None:
        print("skipped: " + why)
        return SKIP
    with tempfile.TemporaryDirectory(prefix="flow-serve-clients-") as folder:
        state = os.path.join(folder, "state")
        with open(os.path.join(folder, "pipeline.lua"), "w", encoding="utf-8") as file:
            file.write(PIPELINE)
        run = subprocess.Popen([flow, "run", folder, "--state", state, "--quiet", "--serve-for", "600s"])
        try:
            end = time.monotonic() + LIMIT_S
            while (urls := urls_of(flow, state)) is None:
                if time.monotonic() > end or run.poll() is not None:
                    sys.exit("the services did not start")
                time.sleep(0.1)
            subprocess.run([python, "-c", TRITON, *urls], check=True, timeout=LIMIT_S)
            kserve = os.environ.get("FLOW_KSERVE_PYTHON")
            if kserve:
                subprocess.run([kserve, "-c", KSERVE, *urls], check=True, timeout=LIMIT_S)
            else:
                print("kserve is left out: FLOW_KSERVE_PYTHON names no Python that has it")
        finally:
            run.send_signal(signal.SIGINT)
            run.wait(LIMIT_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
