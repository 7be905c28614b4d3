"""Starts llama.cpp's HTTP server, and ends with it at SIGTERM."""
import argparse
import signal

import xllamacpp

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True, help="a GGUF file")
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--name", default="smollm2", help="by which requests may call the model")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--slots", type=int, default=2, help="requests that are answered at the same time")
parser.add_argument("--context", type=int, default=2048, help="tokens of each of them")
options = parser.parse_args()

# Before the threads of the server, so that none of them gets it.
ends = {signal.SIGTERM, signal.SIGINT}
signal.pthread_sigmask(signal.SIG_BLOCK, ends)

params = xllamacpp.CommonParams()
params.model.path = options.model
params.model_alias = {options.name}
params.hostnames = ["127.0.0.1"]
params.port = options.port
params.n_parallel = options.slots
params.n_ctx = options.slots * options.context
params.cpuparams.n_threads = options.threads
params.endpoint_metrics = True

server = xllamacpp.Server(params)  # returns when the model is loaded
signal.sigwait(ends)
