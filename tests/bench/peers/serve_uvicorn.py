"""The network of examples/digits behind FastAPI and uvicorn, with numpy: the peer of bench_serve.py.

usage: serve_uvicorn.py PORT

Answers POST /v2/models/digits/infer as the example's service does. Its weights are random: the work is the same.
"""
import sys

import fastapi
import numpy
import uvicorn

random = numpy.random.default_rng(7)
first = random.standard_normal((64, 128), dtype=numpy.float32)
second = random.standard_normal((128, 10), dtype=numpy.float32)
app = fastapi.FastAPI()


@app.get("/v2/health/ready")
async def ready():
    return {"ready": True}


@app.post("/v2/models/digits/infer")
async def infer(request: fastapi.Request):
    body = await request.json()
    given = body["inputs"][0]
    pixels = numpy.array(given["data"], dtype=numpy.float32).reshape(given["shape"])
    scores = numpy.maximum(pixels / 16 @ first, 0) @ second
    scores = numpy.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities = scores / scores.sum(axis=1, keepdims=True)
    labels = probabilities.argmax(axis=1)
    return {"model_name": "digits", "outputs": [
        {"name": "label", "datatype": "INT64", "shape": list(labels.shape), "data": labels.tolist()},
        {"name": "probabilities", "datatype": "FP32", "shape": list(probabilities.shape), "data": probabilities.ravel().tolist()}]}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
