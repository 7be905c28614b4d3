#!/usr/bin/env python3
"""A service answers as Triton does: the same requests, sent by raw HTTP and by unchanged clients, get the same answers.

usage: triton_agreement.py --flow BIN --build FOLDER [--grpc] [--print CASE]

Triton is the one of nvidia-pytriton, which is installed once from PyPI into a folder next to the build, with tritonclient;
exit 77 if that fails. kserve is large: its client takes part if $FLOW_KSERVE_PYTHON names a Python that has it.
The requests are those of oip_cases.py and oip_kserve.py. DIFFERENCES has every difference, with its reason; a
difference that is not there, and one that is there and no longer occurs, fail the test.
"""
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "fetch"))
sys.path.insert(0, HERE)
from python_packages import python_with  # noqa: E402
from triton_server import MODELS, PACKAGES, triton  # noqa: E402

SKIP = 77
LIMIT_S = 120

PIPELINE = r'''
local flow = require "flow"

local function sum(inputs) return { add = inputs.x + inputs.y, sub = inputs.x - inputs.y } end
local function fail(inputs) error("boom: predict failed") end
local function echo(inputs)
  local outputs = {}
  for name, tensor in pairs(inputs) do outputs["out_" .. name:sub(4)] = tensor end
  return outputs
end

%(services)s
return flow.pipeline("agreement", {}, function()
%(calls)s
end)
'''


def pipeline(has_grpc):
    """The models of Triton as services."""
    services, calls = [], []
    for name, (_, rows, *tensors) in MODELS.items():
        declared = []
        for option, listed in zip(("inputs", "outputs"), tensors):
            shape = (lambda dims: "-1, %d" % dims) if rows else str
            declared.append("%s = { %s }" % (option, ", ".join('%s = { "%s", { %s } }' % (n, t, shape(dims)) for n, t, dims in listed)))
        body = {"sum": "sum", "fail": "fail"}.get(name, "echo")
        options = ["port = 0", "batch = { max = %d }" % max(rows, 1)] + (["grpc = 0"] if has_grpc else []) + declared
        services.append('local %s_service = flow.service("%s", { %s }, function(ctx) return { predict = %s } end)' % (name, name, ", ".join(options), body))
        calls.append("  %s_service()" % name)
    return PIPELINE % {"services": "\n".join(services), "calls": "\n".join(calls)}


DIFFERENCES = {
    "A fault of the request is 400 in flow; Triton says 500, as if its own": [
        "infer, " + case for case in (
            "1e400", "a boolean", "a string", "binary_data of no boolean", "data that is no list", "data that is null", "id is a number",
            "inputs that are no list", "list", "name that is a number", "negative size", "no JSON", "no datatype", "no inputs", "no name", "no shape",
            "no values", "null", "output without name", "shape that is no list", "size that is no whole number", "too few values", "too many values",
            "two bodies")] + [
        "\"1\" of FP64", "\"1\" of INT32", "\"true\" of BOOL", "-1 of UINT32", "-1 of UINT64", "-1 of UINT8", "0 of BOOL", "1 of BOOL", "2 of BOOL",
        "1.0 of INT32", "1.5 of INT32", "5 of BYTES", "18446744073709551616 of UINT64", "9223372036854775808 of INT64", "null of BYTES", "true of INT32", "binary input with a wrong header",
        "deflate request that is cut off", "text, a control character", "text, half a pair", "text, unknown escape"],
    "A number that its datatype cannot hold is 400 in flow; Triton takes its lower bits, or an infinity": [
        "-129 of INT8", "128 of INT8", "256 of UINT8", "32768 of INT16", "65536 of UINT16", "2147483648 of INT32", "4294967296 of UINT32",
        "infer, 1e39 as FP32", "gRPC: a value beyond the datatype"],
    "JSON has no NaN and no infinity, and is UTF-8: flow sends and takes no other text": [
        "binary input of NaN, output in JSON", "binary input of infinity, output in JSON", "infer, NaN", "bytes that are not UTF-8, out in JSON",
        "text, not UTF-8"],
    "flow reads and writes FP16 and BF16 in JSON too": ["FP16 and BF16 in JSON"],
    "flow refuses what may be a mistake of the client": [
        "infer, output twice", "gRPC: raw contents of three inputs", "gzip request that is cut off"],
    "flow ignores the body of a request for the index": ["index of no JSON"],
    "Outputs come in the order of the request": ["infer, outputs in another order"],
    "binary_data_output holds for each output that does not say otherwise, as its extension has it": ["infer, all outputs binary but one"],
    "Rows are not apart from other sizes: a request may have any number of them, as declared": [
        "infer, 0 rows", "infer, 9 rows", "infer, rows that differ", "tritonclient.http: infer 9 rows", "tritonclient.grpc: infer 9 rows"],
    "flow compresses JSON from 1 KiB on, with gzip; a client cannot demand it": [
        "gzip response", "gzip response with binary data", "deflate response", "deflate response of 64 KiB"],
    "A model or version that is not there is 404, whatever is asked about it": [
        "GET /v2/models/absent/ready", "GET /v2/models/absent/stats", "GET /v2/models/sum/versions/2/ready", "load absent", "unload absent",
        "tritonclient.http: statistics of absent ", "tritonclient.http: statistics of sum 2", "tritonclient.http: unload of an absent one",
        "tritonclient.grpc: statistics of absent ", "tritonclient.grpc: statistics of sum 2", "tritonclient.grpc: unload of an absent one"],
    "Health and readiness have the bodies of the protocol; Triton's are empty": [
        "GET /v2/health/live", "GET /v2/health/ready", "GET /v2/models/sum/ready", "GET /v2/models/sum/versions/1/ready", "kserve over HTTP: live",
        "kserve over HTTP: ready"],
    "The index has the reason, also if it is empty, as the protocol has it": [
        "index", "index {}", "index ready", "index of no object", "tritonclient.http: index"],
    "RFC 9110 has 415 for an unknown encoding; Triton says 501": ["unknown encoding"],
    "The extension for classes is not supported": ["infer, classification", "tritonclient.http: infer classes", "tritonclient.grpc: infer classes"],
    "The extensions for shared memory and traces are not supported": [
        "tritonclient.http: infer in shared memory", "tritonclient.grpc: infer in shared memory"],
}


def addresses(flow, state, has_grpc):
    """Of each service; None if one is not ready."""
    shown = subprocess.run([flow, "show", "--state", state, "--json"], capture_output=True, text=True)
    if shown.returncode != 0:
        return None
    servers = {}
    for task in json.loads(shown.stdout)["tasks"]:
        if not task.get("url"):
            return None
        servers[task["name"]] = {"http": task["url"].split("//")[1].rstrip("/")}
        if has_grpc:
            log = subprocess.run([flow, "logs", "last", task["name"], "--state", state], capture_output=True, text=True).stdout
            found = re.search(r"gRPC: (127\.0\.0\.1:\d+)", log)
            if not found:
                return None
            servers[task["name"]]["grpc"] = found.group(1)
    return servers if len(servers) == len(MODELS) else None


def answers_of(python, servers):
    answers = {}
    for program, script in ((python, "oip_cases.py"), (os.environ.get("FLOW_KSERVE_PYTHON"), "oip_kserve.py")):
        if program:
            done = subprocess.run([program, os.path.join(HERE, script), json.dumps(servers)], stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True)
            answers.update(json.loads(done.stdout))
    return answers


def answers_of_flow(flow, python, folder, has_grpc):
    state, script = os.path.join(folder, "state"), os.path.join(folder, "script")
    os.mkdir(script)
    with open(os.path.join(script, "pipeline.lua"), "w", encoding="utf-8") as file:
        file.write(pipeline(has_grpc))
    run = subprocess.Popen([flow, "run", script, "--state", state, "--quiet", "--serve-for", "600s"])
    try:
        end = time.monotonic() + LIMIT_S
        while (servers := addresses(flow, state, has_grpc)) is None:
            if time.monotonic() > end or run.poll() is not None:
                sys.exit("the services did not start")
            time.sleep(0.1)
        return answers_of(python, servers)
    finally:
        run.send_signal(signal.SIGINT)
        run.wait(LIMIT_S)


def client_of(case):
    return case.partition(": ")[0] if ": " in case else "raw HTTP"


def compare(ours, theirs):
    """Prints the differences that have no reason; returns their number."""
    reasons = {}
    for reason, cases in DIFFERENCES.items():
        for case in cases:
            assert case not in reasons, case
            reasons[case] = reason
    faults = 0
    for case in sorted(set(ours) | set(theirs)):
        is_equal = ours.get(case) == theirs.get(case)
        if is_equal and case in reasons:
            print("%s: is equal now; remove it from DIFFERENCES" % case)
        elif not is_equal and case not in reasons:
            print("%s:\n  flow   %s\n  Triton %s" % (case, json.dumps(ours.get(case)), json.dumps(theirs.get(case))))
        else:
            continue
        faults += 1
    clients = {client_of(case) for case in theirs}  # kserve and gRPC may be missing
    for case in sorted(set(reasons) - set(theirs)):
        if client_of(case) not in clients:
            continue
        print("%s: is no case" % case)
        faults += 1
    known = len(set(reasons) & set(theirs))
    print("%d requests, %d differences with a reason, %d faults" % (len(theirs), known, faults))
    return faults


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--flow", required=True)
    parser.add_argument("--build", required=True)
    parser.add_argument("--grpc", action="store_true", help="the build has gRPC")
    parser.add_argument("--print", help="prints the answers to this request")
    args = parser.parse_args()
    python, why = python_with(args.build, PACKAGES, ["pytriton", "tritonclient.http", "tritonclient.grpc"], "triton-python")
    if python is None:
        print("skipped: " + why)
        return SKIP
    with tempfile.TemporaryDirectory(prefix="flow-triton-") as folder:
        with triton(python, folder) as (address, why):
            if address is None:
                print("skipped: " + why)
                return SKIP
            theirs = answers_of(python, {model: address if args.grpc else {"http": address["http"]} for model in MODELS})
        ours = answers_of_flow(os.path.abspath(args.flow), python, folder, args.grpc)
    if args.print:
        print("flow   %s\nTriton %s" % (json.dumps(ours.get(args.print)), json.dumps(theirs.get(args.print))))
    return 1 if compare(ours, theirs) else 0


if __name__ == "__main__":
    sys.exit(main())
