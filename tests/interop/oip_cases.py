#!/usr/bin/env python3
"""Requests of the Open Inference Protocol, sent to a server by raw HTTP and by unchanged clients; prints the answers as JSON.

usage: oip_cases.py SERVERS       needs tritonclient[http,grpc] and numpy

SERVERS is JSON: {"sum": {"http": "127.0.0.1:8000", "grpc": "127.0.0.1:8001"}, …}, by model. The models are those of
triton_models.py. An answer has what a client sees: status, fields and tensors, but not the words of an error.
"""
import base64
import gzip
import http.client
import json
import struct
import sys
import zlib

import numpy
import tritonclient.grpc as grpc
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

PLAIN = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP32", "FP64", "BYTES"]
NUMPY = {"BOOL": bool, "UINT8": "u1", "UINT16": "u2", "UINT32": "u4", "UINT64": "u8", "INT8": "i1", "INT16": "i2", "INT32": "i4",
         "INT64": "i8", "FP16": "f2", "FP32": "f4", "FP64": "f8"}
# The least and the most of each type.
VALUES = {"BOOL": [True, False, True], "UINT8": [0, 7, 255], "UINT16": [0, 7, 65535], "UINT32": [0, 7, 2**32 - 1],
          "UINT64": [0, 2**63, 2**64 - 1], "INT8": [-128, 7, 127], "INT16": [-32768, 7, 32767], "INT32": [-2**31, 7, 2**31 - 1],
          "INT64": [-2**63, 7, 2**63 - 1], "FP32": [0.0, -1.5, 3.4028234663852886e38], "FP64": [5e-324, -0.1, 1.7976931348623157e308],
          "BYTES": ["", "a\u0000\"\\\n", "\u00e9\u4e2d\U0001f600"]}
X, Y = [1.0, 2.0, 3.0, 4.0], [0.5, 0.25, -1.0, 0.0]
SUM, TEXT = "/v2/models/sum/infer", "/v2/models/text/infer"


def tensor(name, datatype, shape, data, **more):
    return {"name": name, "datatype": datatype, "shape": shape, "data": data, **more}


def sum_body(**fields):
    return {"inputs": [tensor("x", "FP32", [1, 4], X), tensor("y", "FP32", [1, 4], Y)], **fields}


def sum_with(**fields):
    """Fields of the first input; one that is None is left out."""
    first = {key: value for key, value in {**tensor("x", "FP32", [1, 4], X), **fields}.items() if value is not None}
    return {"inputs": [first, tensor("y", "FP32", [1, 4], Y)]}


def text_body(data, shape=None):
    return {"inputs": [tensor("in_t", "BYTES", shape or [1, len(data)], data)]}


def plain_body(**values):
    return {"inputs": [tensor("in_" + t, t, [3], values.get(t, VALUES[t])) for t in PLAIN]}


def elements(*items):
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


def with_binary(body, data):
    """The body with the bytes after it, and the header for them."""
    head = json.dumps(body).encode()
    return head + data, {"Inference-Header-Content-Length": str(len(head))}


def text_binary(data, shape, **fields):
    body = {"inputs": [{"name": "in_t", "datatype": "BYTES", "shape": shape, "parameters": {"binary_data_size": len(data)}}], **fields}
    return with_binary(body, data)


def sum_binary(data, **fields):
    inputs = [{"name": n, "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": len(data)}} for n in "xy"]
    return with_binary({"inputs": inputs, **fields}, data * 2)


def floats(*values):
    return struct.pack("<%df" % len(values), *values)


BINARY = {"parameters": {"binary_data": True}}


# ---- raw HTTP

def http_cases():
    """name, model, method, path, body (None, bytes or what is sent as JSON), headers"""
    for model in ("sum", "plain", "half", "text"):
        base = "/v2/models/%s" % model
        yield "metadata " + model, model, "GET", base, None, {}
        yield "config " + model, model, "GET", base + "/config", None, {}
    yield "server", "sum", "GET", "/v2", None, {}
    for path in ("/v2/", "/v2/health/live", "/v2/health/ready", "/v2/models/sum/ready", "/v2/models/sum/versions/1", "/v2/models/sum/versions/1/ready",
                 "/v2/models/sum/versions/1/config", "/v2/models/sum/stats", "/v2/models/sum/versions/1/stats", "/v2/models/absent", "/v2/models/absent/ready",
                 "/v2/models/absent/config", "/v2/models/absent/stats", "/v2/models/sum/versions/2", "/v2/models/sum/versions/2/ready",
                 "/v2/models/sum/versions/x", "/v2/models/sum/versions/x/ready", "/v2/models/sum/absent", "/v2/absent", "/absent", "/v2/models", SUM,
                 "/v2/repository/index", "/v2/repository/models/sum/load"):
        yield "GET " + path, "sum", "GET", path, None, {}
    for path in ("/v2", "/v2/health/live", "/v2/models/sum", "/v2/models/sum/ready", "/v2/absent"):
        yield "POST " + path, "sum", "POST", path, {}, {}
    for name, body in (("", b""), (" {}", {}), (" ready", {"ready": True}), (" of no object", [1]), (" of no JSON", b"{")):
        yield "index" + name, "sum", "POST", "/v2/repository/index", body, {}
    for verb in ("load", "unload"):
        for model in ("sum", "absent"):
            yield "%s %s" % (verb, model), "sum", "POST", "/v2/repository/models/%s/%s" % (model, verb), {}, {}

    def infer(name, body, headers=None, model="sum", path=None):
        return name, model, "POST", path or "/v2/models/%s/infer" % model, body, headers or {}

    yield infer("infer", sum_body())
    yield infer("infer, version 1", sum_body(), path="/v2/models/sum/versions/1/infer")
    yield infer("infer, version 2", sum_body(), path="/v2/models/sum/versions/2/infer")
    yield infer("infer, absent model", sum_body(), path="/v2/models/absent/infer")
    yield infer("infer, id", sum_body(id="seven"))
    yield infer("infer, id of UTF-8", sum_body(id="\u4e2d"))
    yield infer("infer, empty id", sum_body(id=""))
    yield infer("infer, id is a number", sum_body(id=7))
    yield infer("infer, nested data", sum_with(data=[X]))
    yield infer("infer, wrongly nested data", sum_with(data=[[1.0], [2.0, 3.0], [4.0]]))
    yield infer("infer, whole numbers as FP32", sum_with(data=[1, 2, 3, 4]))
    yield infer("infer, exponents", sum_with(data=b"[1e2, 1E+2, 1.5e-3, -0]"))
    yield infer("infer, 8 rows", {"inputs": [tensor("x", "FP32", [8, 4], X * 8), tensor("y", "FP32", [8, 4], Y * 8)]})
    yield infer("infer, one output", sum_body(outputs=[{"name": "sub"}]))
    yield infer("infer, outputs in another order", sum_body(outputs=[{"name": "sub"}, {"name": "add"}]))
    yield infer("infer, empty outputs", sum_body(outputs=[]))
    yield infer("infer, absent output", sum_body(outputs=[{"name": "absent"}]))
    yield infer("infer, output twice", sum_body(outputs=[{"name": "add"}, {"name": "add"}]))
    yield infer("infer, output without name", sum_body(outputs=[{}]))
    yield infer("infer, binary output", sum_body(outputs=[{"name": "add", **BINARY}]))
    yield infer("infer, one binary output", sum_body(outputs=[{"name": "add"}, {"name": "sub", **BINARY}]))
    yield infer("infer, all outputs binary", sum_body(parameters={"binary_data_output": True}))
    yield infer("infer, all outputs binary but one", sum_body(parameters={"binary_data_output": True},
                                                             outputs=[{"name": "add", "parameters": {"binary_data": False}}, {"name": "sub"}]))
    yield infer("infer, binary_data of no boolean", sum_body(outputs=[{"name": "add", "parameters": {"binary_data": "yes"}}]))
    yield infer("infer, classification", sum_body(outputs=[{"name": "add", "parameters": {"classification": 2}}]))
    yield infer("infer, parameters", sum_body(parameters={"a": 1, "b": "text", "c": True}))
    yield infer("infer, a parameter of 1.5", sum_body(parameters={"a": 1.5}))
    yield infer("infer, a parameter that is an object", sum_body(parameters={"a": {"b": 1}}))
    yield infer("infer, parameters of an input", sum_with(parameters={"a": 1}))
    yield infer("infer, unknown fields", {**sum_body(), "more": [1, {"a": None}]})
    yield infer("infer, header length 0", sum_body(), {"Inference-Header-Content-Length": "0"})
    for name, body in (("missing input", {"inputs": [tensor("x", "FP32", [1, 4], X)]}),
                       ("further input", {"inputs": sum_body()["inputs"] + [tensor("z", "FP32", [1, 4], X)]}),
                       ("input twice", {"inputs": [tensor("x", "FP32", [1, 4], X)] * 2 + [tensor("y", "FP32", [1, 4], Y)]}),
                       ("other datatype", sum_with(datatype="FP64")), ("unknown datatype", sum_with(datatype="FP33")),
                       ("datatype in lower case", sum_with(datatype="fp32")), ("other size", sum_with(shape=[1, 5], data=X + [5])),
                       ("other rank", sum_with(shape=[4])), ("further rank", sum_with(shape=[1, 1, 4])), ("no dimension", sum_with(shape=[], data=[1])),
                       ("rows that differ", sum_with(shape=[2, 4], data=X * 2)), ("9 rows", {"inputs": [tensor(n, "FP32", [9, 4], X * 9) for n in "xy"]}),
                       ("0 rows", {"inputs": [tensor(n, "FP32", [0, 4], []) for n in "xy"]}), ("negative size", sum_with(shape=[-1, 4])),
                       ("size that is no whole number", sum_with(shape=[1.5, 4])), ("shape that is no list", sum_with(shape=4)),
                       ("too few values", sum_with(data=X[:3])), ("too many values", sum_with(data=X + [5])), ("no values", sum_with(data=[])),
                       ("a string", sum_with(data=["1", 2, 3, 4])), ("null", sum_with(data=[None, 2, 3, 4])), ("a boolean", sum_with(data=[True, 2, 3, 4])),
                       ("data that is no list", sum_with(data=5)), ("data that is null", sum_with(data=b"null")), ("no data", sum_with(data=None)),
                       ("no name", sum_with(name=None)), ("no datatype", sum_with(datatype=None)), ("no shape", sum_with(shape=None)),
                       ("name that is a number", sum_with(name=7)), ("1e400", sum_with(data=b"[1e400, 2, 3, 4]")), ("NaN", sum_with(data=b"[NaN, 2, 3, 4]")),
                       ("1e39 as FP32", sum_with(data=b"[1e39, 2, 3, 4]")), ("no inputs", {}), ("empty inputs", {"inputs": []}),
                       ("inputs that are no list", {"inputs": {}}), ("input that is no object", {"inputs": [1]}), ("no body", b""), ("no JSON", b"{\"inputs\": ["),
                       ("list", []), ("two bodies", b"{}{}")):
        yield infer("infer, " + name, body)
    yield infer("binary input", *sum_binary(floats(*X)))
    yield infer("binary input and output", *sum_binary(floats(*X), parameters={"binary_data_output": True}))
    yield infer("binary input of 3 values", *sum_binary(floats(*X[:3])))
    yield infer("binary input of 5 values", *sum_binary(floats(*X, 5.0)))
    yield infer("binary input without a header", sum_binary(floats(*X))[0])
    body, headers = sum_binary(floats(*X))
    yield infer("binary input that is cut off", body[:-1], headers)
    yield infer("binary input with more after it", body + b"more", headers)
    yield infer("binary input with a wrong header", body, {"Inference-Header-Content-Length": "7"})
    yield infer("binary input with a header beyond the body", body, {"Inference-Header-Content-Length": "70000"})
    yield infer("binary input with a header that is no number", body, {"Inference-Header-Content-Length": "x"})
    yield infer("binary input of NaN, output in JSON", *sum_binary(floats(float("nan"), 1, 2, 3), outputs=[{"name": "add"}]))
    yield infer("binary input of infinity, output in JSON", *sum_binary(floats(float("inf"), 1, 2, 3), outputs=[{"name": "add"}]))
    whole = json.dumps(sum_body()).encode()
    for name, encoded in (("gzip", gzip.compress(whole)), ("deflate", zlib.compress(whole))):
        yield infer(name + " request", encoded, {"Content-Encoding": name})
        yield infer(name + " request that is cut off", encoded[:-6], {"Content-Encoding": name})
        yield infer(name + " request of other bytes", b"\0\1\2\3", {"Content-Encoding": name})
        yield infer(name + " response", sum_body(), {"Accept-Encoding": name})
        yield infer(name + " response of 64 KiB", {"inputs": [tensor("in_t", "BYTES", [1, 64], ["a" * 1024] * 64)]}, {"Accept-Encoding": name}, "text")
    body, headers = sum_binary(floats(*X))
    yield infer("gzip request with binary data", gzip.compress(body), {**headers, "Content-Encoding": "gzip"})
    yield infer("gzip response with binary data", *[sum_binary(floats(*X), parameters={"binary_data_output": True})[0],
                                                   {**sum_binary(floats(*X), parameters={"binary_data_output": True})[1], "Accept-Encoding": "gzip"}])
    yield infer("unknown encoding", whole, {"Content-Encoding": "br"})
    yield infer("identity encoding", whole, {"Content-Encoding": "identity"})
    yield infer("error of the model", {"inputs": [tensor("x", "FP32", [4], X)]}, model="fail")
    yield infer("all types in JSON", plain_body(), model="plain")
    for datatype, bad in (("UINT8", 256), ("UINT8", -1), ("INT8", 128), ("INT8", -129), ("UINT16", 65536), ("INT16", 32768), ("UINT32", 2**32), ("UINT32", -1),
                          ("INT32", 2**31), ("UINT64", -1), ("UINT64", 2**63), ("UINT64", 2**64), ("INT64", 2**63), ("INT32", 1.5), ("INT32", 1.0), ("INT32", "1"), ("INT32", True),
                          ("BOOL", 1), ("BOOL", 0), ("BOOL", 2), ("BOOL", "true"), ("BYTES", 5), ("BYTES", None), ("FP64", "1")):
        yield infer("%s of %s" % (json.dumps(bad), datatype), plain_body(**{datatype: [bad] + VALUES[datatype][1:]}), model="plain")
    half = {"inputs": [tensor("in_" + t, t, [2], [1.0, 2.5]) for t in ("FP16", "BF16")]}
    yield infer("FP16 and BF16 in JSON", half, model="half")
    binary = {"inputs": [{"name": "in_" + t, "datatype": t, "shape": [2], "parameters": {"binary_data_size": 4}} for t in ("FP16", "BF16")],
              "parameters": {"binary_data_output": True}}
    yield infer("FP16 and BF16 in binary", *with_binary(binary, b"\x00\x3c\x00\xfe\x80\x3f\xc0\x7f"), model="half")
    yield infer("text", text_body(["a", "", "\u00e9\u4e2d\U0001f600", "\"\\/\b\f\n\r\t\u0000\u007f"]), model="text")
    yield infer("text, escapes", b'{"inputs":[{"name":"in_t","datatype":"BYTES","shape":[1,2],"data":["\\u00e9\\ud83d\\ude00\\/","\\u0041"]}]}', model="text")
    yield infer("text, half a pair", b'{"inputs":[{"name":"in_t","datatype":"BYTES","shape":[1,1],"data":["\\ud83d"]}]}', model="text")
    yield infer("text, unknown escape", b'{"inputs":[{"name":"in_t","datatype":"BYTES","shape":[1,1],"data":["\\x41"]}]}', model="text")
    yield infer("text, not UTF-8", b'{"inputs":[{"name":"in_t","datatype":"BYTES","shape":[1,1],"data":["\xff"]}]}', model="text")
    yield infer("text, a control character", b'{"inputs":[{"name":"in_t","datatype":"BYTES","shape":[1,1],"data":["\n"]}]}', model="text")
    yield infer("text, nested", text_body([["a", "b"], ["c", "d"]], [2, 2]), model="text")
    yield infer("text, too few", text_body(["a"], [1, 2]), model="text")
    yield infer("text, too many", text_body(["a", "b", "c"], [1, 2]), model="text")
    yield infer("text in binary", *text_binary(elements(b"a", b"", b"\xff\x00"), [1, 3], parameters={"binary_data_output": True}), model="text")
    yield infer("text in binary, out in JSON", *text_binary(elements(b"a", b"\xc3\xa9"), [1, 2]), model="text")
    yield infer("bytes that are not UTF-8, out in JSON", *text_binary(elements(b"a", b"\xff\x00"), [1, 2]), model="text")
    for name, data in (("cut off", elements(b"abc")[:-1]), ("too few", elements(b"a")), ("too many", elements(b"a", b"b", b"c")),
                       ("more after it", elements(b"a", b"b") + b"\0"), ("a length beyond the end", elements(b"a") + b"\xff\xff\xff\xff"), ("no bytes", b"")):
        yield infer("text in binary, " + name, *text_binary(data, [1, 2]), model="text")


def read_outputs(head, tail):
    outputs, at = {}, 0
    for output in head.get("outputs", []):
        size = output.get("parameters", {}).get("binary_data_size")
        data = output.get("data")
        if size is not None:
            data, at = "binary " + base64.b64encode(tail[at:at + size]).decode(), at + size
        elif output["datatype"] == "FP32":  # a number has several texts
            data = [struct.unpack("<f", struct.pack("<f", item))[0] if isinstance(item, (int, float)) else item for item in data]
        outputs[output["name"]] = [output["datatype"], output["shape"], data]
    assert at == len(tail), "bytes follow the last tensor"
    return outputs


def read_body(status, headers, body, path):
    """What a client reads of a body: fields and tensors."""
    encoding = headers.get("Content-Encoding", "identity")
    if encoding == "gzip":
        body = gzip.decompress(body)
    elif encoding == "deflate":
        body = zlib.decompress(body)
    size = int(headers.get("Inference-Header-Content-Length", len(body)))
    try:
        head = json.loads(body[:size], parse_constant=lambda name: "no JSON: " + name) if body else None
    except ValueError:
        return "no JSON"
    if status >= 400:
        return {"has an error": isinstance(head, dict) and isinstance(head.get("error"), str)}
    seen = {"encoding": encoding}
    if body:
        seen["type"] = headers.get("Content-Type", "").split(";")[0]
    if path.endswith("/infer"):
        for field in ("model_name", "model_version", "id"):
            seen[field] = head.get(field)
        seen["outputs"] = read_outputs(head, body[size:])
        if head["model_name"] == "sum":  # Triton's Python model gives the outputs of others in any order
            seen["order"] = [output["name"] for output in head["outputs"]]
    elif path.endswith("/config"):
        seen["config"] = {field: head.get(field) for field in ("name", "max_batch_size")}
        for field in ("input", "output"):
            seen["config"][field] = sorted([t["name"], t["data_type"], [int(d) for d in t["dims"]]] for t in head[field])
    elif path.endswith("/stats"):
        (model,) = head["model_stats"]
        seen["statistics"] = sorted(set(model) & {"name", "version", "last_inference", "inference_count", "execution_count", "inference_stats", "batch_stats"})
        seen["inference_stats"] = sorted(model["inference_stats"])
    elif "/models/" in path and isinstance(head, dict) and "inputs" in head:
        seen["metadata"] = [head["name"], head["versions"]]
        for field in ("inputs", "outputs"):
            seen[field] = sorted([t["name"], t["datatype"], t["shape"]] for t in head[field])
    elif path == "/v2/repository/index":
        seen["index"] = [model for model in head if model["name"] == "sum"]
    elif path == "/v2":
        seen["server"] = sorted(head)
        seen["extensions"] = [name for name in ("binary_tensor_data", "model_configuration", "model_repository", "statistics", "parameters")
                              if name in head["extensions"]]
    return seen


class RawBytes(json.JSONEncoder):
    """JSON in which a part is written as it is."""

    def __init__(self, **options):
        super().__init__(**options)
        self.parts = {}

    def default(self, o):
        key = "raw part %d" % len(self.parts)
        self.parts[json.dumps(key)] = o.decode()
        return key


def encoded(body):
    if body is None or isinstance(body, bytes):
        return body
    encoder = RawBytes()
    text = encoder.encode(body)
    for key, part in encoder.parts.items():
        text = text.replace(key, part)
    return text.encode()


def run_http(servers):
    answers = {}
    for name, model, method, path, body, headers in http_cases():
        assert name not in answers, name
        connection = http.client.HTTPConnection(servers[model]["http"], timeout=30)
        try:
            connection.request(method, path, encoded(body), {"Content-Type": "application/json", **headers})
            response = connection.getresponse()
            answers[name] = [response.status, read_body(response.status, response.headers, response.read(), path)]
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            answers[name] = ["no answer", type(error).__name__]
        finally:
            connection.close()
    return answers


# ---- clients

def array_of(datatype, shape):
    if datatype == "BYTES":
        return numpy.array([text.encode() for text in VALUES["BYTES"]] * (shape[0] * shape[1] // 3), dtype=object).reshape(shape)
    return numpy.array(VALUES[datatype]).astype(NUMPY[datatype]).reshape(shape)


def seen_array(array):
    if array is None:
        return None
    items = [item.decode("latin-1") if isinstance(item, bytes) else item for item in array.reshape(-1).tolist()]
    return [str(array.dtype), list(array.shape), [str(item) for item in items]]


def called(call):
    try:
        return call()
    except InferenceServerException as error:
        return "error " + str(error.status())


def result_of(call, names):
    def read():
        result = call()
        response = result.get_response()
        fields = response if isinstance(response, dict) else {"id": response.id, "model_name": response.model_name, "model_version": response.model_version}
        return {"id": fields.get("id") or "", "model": [fields["model_name"], fields["model_version"]],
                "outputs": {name: seen_array(result.as_numpy(name)) for name in names}}
    return called(read)


def given(module, name, array, datatype, binary=True):
    tensor_in = module.InferInput(name, list(array.shape), datatype)
    if module is triton:
        tensor_in.set_data_from_numpy(array, binary_data=binary)
    else:
        tensor_in.set_data_from_numpy(array)
    return tensor_in


def client_cases(module, clients, answers, name):
    """What both clients of Triton do alike. `clients` by model."""
    one = clients["sum"]
    x, y = numpy.array([X], dtype="f4"), numpy.array([Y], dtype="f4")

    def add(title, value):
        answers["%s: %s" % (name, title)] = value

    def infer(title, inputs, names, model="sum", **options):
        add(title, result_of(lambda: clients[model].infer(options.pop("called", model), inputs, **options), names))

    add("live", called(one.is_server_live))
    add("ready", called(one.is_server_ready))
    for model, version in (("sum", ""), ("sum", "1"), ("sum", "2"), ("absent", "")):
        add("model %s %s is ready" % (model, version), called(lambda m=model, v=version: one.is_model_ready(m, v)))
        add("metadata of %s %s" % (model, version), called(lambda m=model, v=version: bool(one.get_model_metadata(m, v))))
        add("config of %s %s" % (model, version), called(lambda m=model, v=version: bool(one.get_model_config(m, v))))
        add("statistics of %s %s" % (model, version), called(lambda m=model, v=version: bool(one.get_inference_statistics(m, v))))
    add("load", called(lambda: one.load_model("sum")))
    add("unload", called(lambda: one.unload_model("sum")))
    add("unload of an absent one", called(lambda: one.unload_model("absent")))
    both = lambda: [given(module, "x", x, "FP32"), given(module, "y", y, "FP32")]  # noqa: E731
    infer("infer", both(), ["add", "sub"])
    infer("infer with id and version", both(), ["add", "sub"], request_id="7", model_version="1")
    infer("infer with parameters", both(), ["add"], parameters={"a": "text", "b": 1, "c": True})
    infer("infer with priority and timeout", both(), ["add"], priority=1, timeout=1_000_000)
    infer("infer in a sequence", both(), ["add"], sequence_id=5, sequence_start=True, sequence_end=True)
    infer("infer one output", both(), ["add", "sub"], outputs=[module.InferRequestedOutput("sub")])
    infer("infer an absent output", both(), [], outputs=[module.InferRequestedOutput("absent")])
    infer("infer classes", both(), ["add"], outputs=[module.InferRequestedOutput("add", class_count=2)])
    infer("infer version 2", both(), [], model_version="2")
    infer("infer an absent model", both(), [], called="absent")
    infer("infer without an input", both()[:1], [])
    infer("infer another datatype", [given(module, "x", x.astype("f8"), "FP64"), both()[1]], [])
    infer("infer another shape", [given(module, "x", x.reshape(4), "FP32"), both()[1]], [])
    infer("infer an unknown input", both() + [given(module, "z", x, "FP32")], [])
    infer("infer 9 rows", [given(module, n, numpy.ones((9, 4), "f4"), "FP32") for n in "xy"], [])
    infer("infer in shared memory", [shared(module)] + both()[1:], [])
    infer("error of the model", [given(module, "x", x.reshape(4), "FP32")], [], model="fail")
    infer("all types", [given(module, "in_" + t, array_of(t, (3,) if t != "BYTES" else (1, 3)).reshape(3), t) for t in PLAIN], ["out_" + t for t in PLAIN],
          model="plain")
    half = numpy.array([1.0, 65504.0], dtype="f2")
    bfloat = numpy.array([1.0, -2.5]).astype(triton_to_np_dtype("BF16"))
    infer("FP16 and BF16", [given(module, "in_FP16", half, "FP16"), given(module, "in_BF16", bfloat, "BF16")], ["out_FP16", "out_BF16"], model="half")
    infer("text", [given(module, "in_t", array_of("BYTES", (2, 3)), "BYTES")], ["out_t"], model="text")
    binary = numpy.array([[b"\xff\x00", b""]], dtype=object)
    infer("bytes", [given(module, "in_t", binary, "BYTES")], ["out_t"], model="text")
    for algorithm in ("gzip", "deflate"):
        options = {"compression_algorithm": algorithm} if module is grpc else {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
        infer(algorithm, both(), ["add"], **options)


def shared(module):
    tensor_in = module.InferInput("x", [1, 4], "FP32")
    tensor_in.set_shared_memory("absent", 16)
    return tensor_in


def run_clients(servers):
    answers = {}
    over_http = {model: triton.InferenceServerClient(at["http"]) for model, at in servers.items()}
    client_cases(triton, over_http, answers, "tritonclient.http")
    inputs = [given(triton, "in_" + t, array_of(t, (3,) if t != "BYTES" else (1, 3)).reshape(3), t, binary=False) for t in PLAIN]
    outputs = [triton.InferRequestedOutput("out_" + t, binary_data=False) for t in PLAIN]
    answers["tritonclient.http: all types in JSON"] = result_of(lambda: over_http["plain"].infer("plain", inputs, outputs=outputs), ["out_" + t for t in PLAIN])
    answers["tritonclient.http: index"] = called(lambda: [m for m in over_http["sum"].get_model_repository_index() if m["name"] == "sum"])
    if all("grpc" in at for at in servers.values()):
        over_grpc = {model: grpc.InferenceServerClient(at["grpc"]) for model, at in servers.items()}
        client_cases(grpc, over_grpc, answers, "tritonclient.grpc")
        grpc_cases(over_grpc, answers)
    return answers


def grpc_cases(clients, answers):
    """Messages that tritonclient does not write: values in contents, and malformed ones."""
    from tritonclient.grpc import service_pb2

    def message(model, *tensors, **fields):
        request = service_pb2.ModelInferRequest(model_name=model, **{key: value for key, value in fields.items() if key != "raw"})
        for name, datatype, shape, contents in tensors:
            field = request.inputs.add(name=name, datatype=datatype, shape=shape)
            for key, values in contents.items():
                getattr(field.contents, key).extend(values)
        request.raw_input_contents.extend(fields.get("raw", []))
        return request

    def send(title, request):
        def call():
            import grpc as core
            try:
                response = clients[request.model_name]._client_stub.ModelInfer(request)
            except core.RpcError as error:
                return "error " + str(error.code())
            outputs = zip(response.outputs, response.raw_output_contents)
            return {output.name: [output.datatype, list(output.shape), base64.b64encode(raw).decode()] for output, raw in outputs}
        answers["gRPC: " + title] = call()

    x, y = ("x", "FP32", [1, 4], {"fp32_contents": X}), ("y", "FP32", [1, 4], {"fp32_contents": Y})
    fields = {"BOOL": "bool_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
              "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents", "FP32": "fp32_contents",
              "FP64": "fp64_contents", "BYTES": "bytes_contents"}
    values = {**VALUES, "BYTES": [text.encode() for text in VALUES["BYTES"]]}
    send("contents", message("sum", x, y))
    send("contents of all types", message("plain", *[("in_" + t, t, [3], {fields[t]: values[t]}) for t in PLAIN]))
    send("contents of bytes", message("text", ("in_t", "BYTES", [1, 2], {"bytes_contents": [b"\xff\x00", b""]})))
    send("contents in another field", message("sum", ("x", "FP32", [1, 4], {"fp64_contents": X}), y))
    send("too few values", message("sum", ("x", "FP32", [1, 4], {"fp32_contents": X[:3]}), y))
    send("too many values", message("sum", ("x", "FP32", [1, 4], {"fp32_contents": X + X}), y))
    send("no values", message("sum", ("x", "FP32", [1, 4], {}), y))
    send("contents and raw contents", message("sum", x, y, raw=[floats(*X), floats(*Y)]))
    empty = [("x", "FP32", [1, 4], {}), ("y", "FP32", [1, 4], {})]
    send("raw contents", message("sum", *empty, raw=[floats(*X), floats(*Y)]))
    send("raw contents of one input", message("sum", *empty, raw=[floats(*X)]))
    send("raw contents of three inputs", message("sum", *empty, raw=[floats(*X)] * 3))
    send("raw contents of 3 values", message("sum", *empty, raw=[floats(*X[:3]), floats(*Y)]))
    send("no inputs", message("sum"))
    send("an unknown datatype", message("sum", ("x", "FP33", [1, 4], {"fp32_contents": X}), y))
    send("a value beyond the datatype", message("plain", *[("in_" + t, t, [3], {fields[t]: [300] + values[t][1:] if t == "UINT8" else values[t]}) for t in PLAIN]))
    text = ("in_t", "BYTES", [1, 2], {})
    for title, data in (("raw bytes", elements(b"a", b"\xff")), ("raw bytes cut off", elements(b"a", b"bc")[:-1]), ("too few raw bytes", elements(b"a")),
                        ("too many raw bytes", elements(b"a", b"b", b"c")), ("raw bytes with more after them", elements(b"a", b"b") + b"\0")):
        send(title, message("text", text, raw=[data]))


def main():
    servers = json.loads(sys.argv[1])
    answers = {**run_http(servers), **run_clients(servers)}
    json.dump(answers, sys.stdout, indent=1, sort_keys=True, default=str)


if __name__ == "__main__":
    main()
