"""Triton with models in Python, as the PyPI package nvidia-pytriton brings it: without a GPU and without its own Python code."""
import contextlib
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import unused_port  # noqa: E402

LIMIT_S = 60
PACKAGES = ["nvidia-pytriton==0.7.0", "tritonclient[http,grpc]==2.73.0"]  # of the folder `triton-python`

SUM = '''
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x, y = (pb.get_input_tensor_by_name(request, name).as_numpy() for name in "xy")
            responses.append(pb.InferenceResponse([pb.Tensor("add", x + y), pb.Tensor("sub", x - y)]))
        return responses
'''

# numpy has no BF16, and DLPack no strings.
ECHO = '''
import triton_python_backend_utils as pb


def echo(tensor):
    name = "out_" + tensor.name()[3:]
    return pb.Tensor.from_dlpack(name, tensor.to_dlpack()) if name in ("out_FP16", "out_BF16") else pb.Tensor(name, tensor.as_numpy())


class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse([echo(tensor) for tensor in request.inputs()]) for request in requests]
'''

FAIL = '''
class TritonPythonModel:
    def execute(self, requests):
        raise Exception("boom: predict failed")
'''

PLAIN = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP32", "FP64", "BYTES"]


def echoed(datatypes, dims):
    return [("in_" + t, t, dims) for t in datatypes], [("out_" + t, t, dims) for t in datatypes]


# name: code, rows of a batch (0: it has no rows), inputs, outputs
MODELS = {
    "sum": (SUM, 8, [("x", "FP32", 4), ("y", "FP32", 4)], [("add", "FP32", 4), ("sub", "FP32", 4)]),
    "plain": (ECHO, 0, *echoed(PLAIN, -1)),
    "half": (ECHO, 0, *echoed(["FP16", "BF16"], -1)),
    "text": (ECHO, 4, [("in_t", "BYTES", -1)], [("out_t", "BYTES", -1)]),
    "fail": (FAIL, 0, [("x", "FP32", 4)], [("y", "FP32", 4)]),
}


def write_models(folder):
    for name, (code, rows, inputs, outputs) in MODELS.items():
        os.makedirs(os.path.join(folder, name, "1"))
        lines = ['name: "%s"' % name, 'backend: "python"', "max_batch_size: %d" % rows, "instance_group { kind: KIND_CPU }"]
        for kind, tensors in (("input", inputs), ("output", outputs)):
            for tensor, datatype, dims in tensors:
                lines.append('%s { name: "%s" data_type: TYPE_%s dims: [%d] }' % (kind, tensor, datatype.replace("BYTES", "STRING"), dims))
        with open(os.path.join(folder, name, "config.pbtxt"), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        with open(os.path.join(folder, name, "1", "model.py"), "w", encoding="utf-8") as file:
            file.write(code)


def is_ready(address):
    try:
        with urllib.request.urlopen("http://%s/v2/health/ready" % address, timeout=5) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


@contextlib.contextmanager
def triton(python, folder):
    """Starts Triton of the Python's package; gives its addresses, or None and the reason why it cannot run here."""
    find = "import os, sys, pytriton; print(os.path.dirname(pytriton.__file__)); print('%d.%d' % sys.version_info[:2])"
    package, version = subprocess.run([python, "-c", find], check=True, capture_output=True, text=True).stdout.split()
    server = os.path.join(package, "tritonserver")
    stub = os.path.join(server, "python_backend_stubs", version, "triton_python_backend_stub")
    if not os.path.exists(stub):
        yield None, "Triton has no program for models of Python " + version
        return
    linked = subprocess.run(["ldd", stub], capture_output=True, text=True).stdout
    if "not found" in linked:
        yield None, "a library is missing: " + next(line.strip() for line in linked.splitlines() if "not found" in line)
        return
    backends, models = os.path.join(folder, "backends"), os.path.join(folder, "models")
    shutil.copytree(os.path.join(server, "backends"), backends)
    shutil.copy(stub, os.path.join(backends, "python"))
    write_models(models)
    http, grpc = unused_port(), unused_port()
    # the libraries of the package are found by the path of the program, which stays where it is; those of the copies by this
    libraries = os.path.join(os.path.dirname(package), "nvidia_pytriton.libs")
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(package), "LD_LIBRARY_PATH": libraries}
    command = [os.path.join(server, "bin", "tritonserver"), "--model-repository=" + models, "--backend-directory=" + backends,
               "--http-address=127.0.0.1", "--http-port=%d" % http, "--grpc-address=127.0.0.1", "--grpc-port=%d" % grpc, "--allow-metrics=false",
               "--disable-auto-complete-config", "--backend-config=python,shm-region-prefix-name=flow_%d" % os.getpid(),
               "--backend-config=python,stub-timeout-seconds=%d" % LIMIT_S]
    log = os.path.join(folder, "triton.log")
    with open(log, "wb") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out) as process:
        try:
            end = time.monotonic() + LIMIT_S
            while not is_ready("127.0.0.1:%d" % http):
                if process.poll() is not None or time.monotonic() > end:
                    with open(log, encoding="utf-8", errors="replace") as file:
                        raise RuntimeError("Triton did not start: " + file.read()[-3000:])
                time.sleep(0.1)
            yield {"http": "127.0.0.1:%d" % http, "grpc": "127.0.0.1:%d" % grpc}, ""
        finally:
            process.terminate()
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
