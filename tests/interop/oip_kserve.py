#!/usr/bin/env python3
"""Requests by kserve's clients to a server of the Open Inference Protocol; prints the answers as JSON, as oip_cases.py does.

usage: oip_kserve.py SERVERS       needs kserve, which one process cannot load together with tritonclient
"""
import asyncio
import json
import logging
import sys

import numpy
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig


def given(name, values, datatype, binary):
    tensor = InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values, binary_data=binary)
    return tensor


def seen(response):
    outputs = {output.name: [output.datatype, list(output.shape), [str(item) for item in output.as_numpy().reshape(-1).tolist()]]
               for output in response.outputs}
    return [response.model_name, response.model_version, response.id or "", outputs]


async def called(call):
    try:
        answer = await call
        return answer if isinstance(answer, bool) else seen(answer)
    except Exception as error:  # each client has its own kinds
        status = getattr(getattr(error, "response", None), "status_code", None) or (error.code().name if hasattr(error, "code") else None)
        return "error %s" % (status or type(error).__name__)


def requests():
    """name, model, request"""
    x, y = numpy.array([[1.0, 2.0, 3.0, 4.0]], "f4"), numpy.array([[0.5, 0.25, -1.0, 0.0]], "f4")
    texts = numpy.array([[b"a", "\u00e9".encode()]], dtype=object)
    for binary in (True, False):
        yield "infer, binary %s" % binary, "sum", InferRequest("sum", [given("x", x, "FP32", binary), given("y", y, "FP32", binary)], request_id="9")
        yield "text, binary %s" % binary, "text", InferRequest("text", [given("in_t", texts, "BYTES", binary)], request_id="9")
        yield "another shape, binary %s" % binary, "sum", InferRequest("sum", [given("x", x.reshape(4), "FP32", binary)] * 1)


async def over_http(servers):
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    url = "http://" + servers["sum"]["http"]
    answers = {"live": await called(client.is_server_live(url)), "ready": await called(client.is_server_ready(url))}
    for model in ("sum", "absent"):
        answers[model + " is ready"] = await called(client.is_model_ready(url, model))
    for name, model, request in requests():
        answers[name] = await called(client.infer("http://" + servers[model]["http"], request, model_name=model))
    await client.close()
    return {"kserve over HTTP: " + name: answer for name, answer in answers.items()}


async def over_grpc(servers):
    clients = {model: InferenceGRPCClient(url=at["grpc"]) for model, at in servers.items()}
    one = clients["sum"]
    answers = {"live": await called(one.is_server_live()), "ready": await called(one.is_server_ready())}
    for model in ("sum", "absent"):
        answers[model + " is ready"] = await called(one.is_model_ready(model))
    for name, model, request in requests():
        answers[name] = await called(clients[model].infer(request))
    for client in clients.values():
        await client.close()
    return {"kserve over gRPC: " + name: answer for name, answer in answers.items()}


async def ask(servers):
    answers = await over_http(servers)
    if all("grpc" in at for at in servers.values()):
        answers.update(await over_grpc(servers))
    return answers


if __name__ == "__main__":
    logging.disable()  # it logs each error with its traceback
    json.dump(asyncio.run(ask(json.loads(sys.argv[1]))), sys.stdout, indent=1, sort_keys=True)
