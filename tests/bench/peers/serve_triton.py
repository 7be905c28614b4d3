"""The network of examples/digits in Triton's Python backend, with numpy: a peer of bench_serve.py.

usage: serve_triton.py PORT [FOLDER]

Runs under a Python with nvidia-pytriton, which carries the server, and numpy; it becomes tritonserver. Its weights are
random: the work is the same. FOLDER gets the model and a copy of the backend (default: a temporary one, which is not removed).
"""
import os
import shutil
import sys
import tempfile

import pytriton

CONFIGURATION = """
name: "digits"
backend: "python"
max_batch_size: 32
dynamic_batching {}
instance_group [ { count: 1 kind: KIND_CPU } ]
input [ { name: "pixels" data_type: TYPE_FP32 dims: [ 64 ] } ]
output [ { name: "label" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "probabilities" data_type: TYPE_FP32 dims: [ 10 ] } ]
"""
MODEL = """
import numpy
import triton_python_backend_utils as utils


class TritonPythonModel:
    def initialize(self, args):
        random = numpy.random.default_rng(7)
        self.first = random.standard_normal((64, 128), dtype=numpy.float32)
        self.second = random.standard_normal((128, 10), dtype=numpy.float32)

    def execute(self, requests):
        parts = [utils.get_input_tensor_by_name(request, "pixels").as_numpy() for request in requests]
        pixels = numpy.concatenate(parts)
        scores = numpy.maximum(pixels / 16 @ self.first, 0) @ self.second
        scores = numpy.exp(scores - scores.max(axis=1, keepdims=True))
        probabilities = scores / scores.sum(axis=1, keepdims=True)
        labels = probabilities.argmax(axis=1)[:, None]
        responses, at = [], 0
        for part in parts:
            rows = slice(at, at + len(part))
            at += len(part)
            responses.append(utils.InferenceResponse(output_tensors=[
                utils.Tensor("label", labels[rows]), utils.Tensor("probabilities", probabilities[rows])]))
        return responses
"""


def main():
    port = sys.argv[1]
    folder = sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp(prefix="triton-")
    repository, backends = os.path.join(folder, "models"), os.path.join(folder, "backends")
    package = os.path.dirname(pytriton.__file__)
    packages = os.path.dirname(package)
    server = os.path.join(package, "tritonserver")
    version = os.path.join(repository, "digits", "1")
    os.makedirs(version)
    for path, text in ((os.path.join(repository, "digits", "config.pbtxt"), CONFIGURATION), (os.path.join(version, "model.py"), MODEL)):
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
    # The process of a model is a program for one version of Python, which must lie in the backend's folder.
    shutil.copytree(os.path.join(server, "backends"), backends)
    stub = os.path.join(server, "python_backend_stubs", "%d.%d" % sys.version_info[:2], "triton_python_backend_stub")
    shutil.copy(stub, os.path.join(backends, "python"))
    libraries = ":".join([os.path.join(packages, "nvidia_pytriton.libs"), os.path.join(sys.base_prefix, "lib")])
    # The model's process looks for Python's own modules by the first `python3` of PATH.
    path = os.path.dirname(sys.executable) + ":" + os.environ["PATH"]
    environment = {**os.environ, "PATH": path, "PYTHONPATH": packages, "LD_LIBRARY_PATH": libraries}
    program = os.path.join(server, "bin", "tritonserver")
    os.execve(program, [program, "--model-repository", repository, "--backend-directory", backends,
                        "--http-address", "127.0.0.1", "--http-port", port, "--allow-grpc", "false", "--allow-metrics", "false",
                        "--log-error", "true", "--log-info", "false", "--log-warning", "false"], environment)


if __name__ == "__main__":
    main()
