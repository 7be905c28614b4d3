#!/usr/bin/env python3
"""Tensors of a service from a client to `predict` and back: strings, which scripts have as lists, and integers that
tensors of a script lack.

usage: service_tensors.py --flow BIN [TEST...]
"""
import concurrent.futures
import json
import os
import struct
import sys
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

# Each text is answered with its length, and with itself in capitals; the log has what predict gets.
SCRIPT = r'''
local flow = require "flow"
local texts = flow.service("texts", { port = 0, batch = { BATCH }, warmup = { text = { "warm", shape = { 1, 1 } } },
  inputs = { text = { "BYTES", { -1, 1 } } }, outputs = { upper = { "BYTES", { -1, 1 } }, length = { "INT16", { -1 } } },
}, function(ctx)
  return { predict = function(inputs)
    local text = inputs.text
    ctx:log(("got %d strings of shape %d,%d: %s"):format(#text, text.shape[1], text.shape[2], table.concat(text, "|")))
    local upper, length = { shape = text.shape }, {}
    for i, each in ipairs(text) do upper[i], length[i] = each:upper(), each == "huge" and 32768 or #each end
    if text[1] == "number" then upper[1] = 7 end
    if text[1] == "short" then upper.shape = { 2, 1 } end
    return { upper = upper, length = flow.tensor(length, "i32") }
  end }
end)
return flow.pipeline("texts", {}, function() texts() end)
'''


# UINT64 is i64 with the same bits in a script.
WIDE = r'''
local flow = require "flow"
local wide = flow.service("wide", { port = 0,
  inputs = { x = { "UINT64", { -1 } } }, outputs = { x = { "UINT64", { -1 } }, large = { "BOOL", { -1 } } },
}, function(ctx)
  return { predict = function(inputs)
    local large, values = {}, inputs.x:table()
    for i, each in ipairs(values) do large[i] = math.ult(9, each) end
    ctx:log("got " .. inputs.x.dtype .. ": " .. table.concat(values, " "))
    return { x = inputs.x, large = flow.tensor(large) }
  end }
end)
return flow.pipeline("wide", {}, function() wide() end)
'''
# Each request is answered with its own parameters.
ASKED = r'''
local flow = require "flow"
local asked = flow.service("asked", { port = 0, batch = { max = 2, wait = "50s" }, timeout = "100s" }, function(ctx)
  return { predict = function(inputs, request)
    local texts = {}
    for i, each in ipairs(request.requests) do
      texts[i] = flow.json.encode { each.parameters, each.input_parameters or "none", each.output_parameters or "none" }
    end
    if inputs.x[1] < 0 then return { text = texts }, { parameters = { word = {} } } end
    local answers = { parameters = { model = "v3", whole = 2.0 }, requests = {} }
    for i, each in ipairs(request.requests) do answers.requests[i] = { parameters = each.parameters } end
    return { text = texts }, answers
  end }
end)
return flow.pipeline("asked", {}, function() asked() end)
'''


def elements(*items):
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


class ServiceTensors(Place):
    def serve(self, batch="max = 4"):
        return self.serve_script(SCRIPT.replace("BATCH", batch), "texts")

    def serve_script(self, script, name):
        self.write("pipeline.lua", script)
        self.start("run", ".", "--serve-for", "600s")
        self.until("it serves", lambda: any(each.get("url") for each in self.runs()))
        return self.show()["url"] + "/v2/models/" + name + "/infer"

    def post(self, url, body, **headers):
        """The status, the JSON and the bytes after it."""
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
                text, size = answer.read(), answer.headers.get("Inference-Header-Content-Length")
                size = len(text) if size is None else int(size)
                return answer.status, json.loads(text[:size]), text[size:]
        except urllib.error.HTTPError as error:
            return error.code, json.load(error), b""

    def ask(self, url, *texts, datatype="BYTES"):
        tensor = {"name": "text", "datatype": datatype, "shape": [len(texts), 1], "data": list(texts)}
        return self.post(url, json.dumps({"inputs": [tensor]}).encode())[:2]

    def binary(self, url, data, rows, **fields):
        head = json.dumps({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [rows, 1], "parameters": {"binary_data_size": len(data)}}],
                           **fields}).encode()
        return self.post(url, head + data, **{"Inference-Header-Content-Length": str(len(head))})

    def test_strings_are_lists_in_predict_and_narrow_outputs_keep_their_datatype(self):
        url = self.serve()
        self.assertIn("got 1 strings of shape 1,1: warm", self.good("logs", "last", "texts").out)
        status, answer = self.ask(url, "one", "", "\u00e9\u0000\"")
        self.assertEqual(status, 200, answer)
        length, upper = answer["outputs"]
        self.assertEqual(length, {"name": "length", "datatype": "INT16", "shape": [3], "data": [3, 0, 4]})
        self.assertEqual(upper, {"name": "upper", "datatype": "BYTES", "shape": [3, 1], "data": ["ONE", "", "\u00e9\u0000\""]})

        status, answer, tail = self.binary(url, elements(b"a", b"\xff\0"), 2, parameters={"binary_data_output": True})
        self.assertEqual([status, tail], [200, struct.pack("<2h", 1, 2) + elements(b"A", b"\xff\0")])
        self.assertEqual([each["parameters"]["binary_data_size"] for each in answer["outputs"]], [4, 11])
        metadata = urllib.request.urlopen(url[:-len("/infer")], timeout=60)
        self.assertEqual(json.load(metadata)["inputs"], [{"name": "text", "datatype": "BYTES", "shape": [-1, 1]}])

    def test_what_is_no_string_is_refused_and_what_json_cannot_hold_is_an_error(self):
        url = self.serve()

        def refused(expected, answer):
            self.assertEqual((answer[0], answer[1]["error"]), expected)
        refused((400, "inputs[0].data[0] of `text` is 5, but each value of BYTES must be a string"), self.ask(url, 5))
        refused((400, "the input `text` is UINT8, but BYTES is declared"), self.ask(url, 5, datatype="UINT8"))
        self.assertEqual(self.binary(url, elements(b"ab")[:-1], 1)[0], 400)
        self.assertEqual(self.binary(url, elements(b"ab") + b"c", 1)[0], 400)
        refused((500, "output `upper` holds bytes at index 1 that are not UTF-8, which JSON cannot represent: ask for it as binary data"),
                self.binary(url, elements(b"a", b"\xff"), 2))
        refused((500, "`predict` returned something else than is declared: the output `length` holds 32768 at index 0, but INT16 holds whole numbers "
                      "from -32768 to 32767"), self.ask(url, "huge"))
        for word, what in (("number", "has the entry [1], which is not a string"), ("short", "has 1 strings, and its `shape` needs 2")):
            status, answer = self.ask(url, word)
            self.assertEqual(status, 500)
            self.assertIn("`predict` of `texts` returned a table whose entry `upper` " + what, answer["error"])
        self.assertEqual(self.ask(url, "on")[0], 200)

    def test_requests_with_strings_are_one_batch_and_each_gets_its_own(self):
        url = self.serve('max = 3, wait = "50s"')  # a batch begins once it is full
        with concurrent.futures.ThreadPoolExecutor() as pool:
            asked = [pool.submit(self.ask, url, *texts) for texts in (["one"], ["three", ""])]
        answers = [[output["data"] for output in each.result()[1]["outputs"]] for each in asked]
        self.assertEqual(answers, [[[3], ["ONE"]], [[5, 0], ["THREE", ""]]])
        self.until("the log is written", lambda: "got 3 strings of shape 3,1" in self.good("logs", "last", "texts").out)

    def test_a_batch_is_padded_with_empty_strings(self):
        url = self.serve("max = 4, pad = true")
        status, answer = self.ask(url, "one", "two")
        self.assertEqual([status, answer["outputs"][1]["data"]], [200, ["ONE", "TWO"]])
        self.until("the log is written", lambda: "got 4 strings of shape 4,1: one|two||\n" in self.good("logs", "last", "texts").out)

    def test_predict_gets_the_parameters_of_each_request_of_a_batch(self):
        url = self.serve_script(ASKED, "asked")

        def ask(parameters, of_input=None, x=1):
            tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [x], **(of_input or {})}
            return self.post(url, json.dumps({"inputs": [tensor], "outputs": [{"name": "text", "parameters": {"top": 3}}], **parameters}).encode())[:2]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            asked = [pool.submit(ask, {"parameters": {"word": "a", "yes": True, "half": 0.5, "sequence_id": 7, "binary_data": False, "binary_data_size": 3}}), pool.submit(ask, {}, {"parameters": {"scale": -2}})]
        answers = [[each.result()[0], json.loads(each.result()[1]["outputs"][0]["data"][0])] for each in asked]
        self.assertEqual(answers, [[200, [{"word": "a", "yes": True, "half": 0.5, "sequence_id": 7}, "none", {"text": {"top": 3}}]],
                                   [200, [[], {"x": {"scale": -2}}, {"text": {"top": 3}}]]])
        common = {"model": "v3", "whole": 2.0}
        self.assertEqual([each.result()[1]["parameters"] for each in asked],
                         [{"word": "a", "yes": True, "half": 0.5, "sequence_id": 7, **common}, common])
        with concurrent.futures.ThreadPoolExecutor() as pool:
            wrong = [each.result() for each in [pool.submit(ask, {}, None, -1) for _ in range(2)]]
        self.assertEqual([status for status, _ in wrong], [500, 500])
        self.assertIn("`predict` of `asked` returned a second result that has `parameters.word`, which is a table: a parameter is a string", wrong[0][1]["error"])
        self.assertEqual(ask({"parameters": {"deep": {}}}), (400, {"error": "parameters.deep is not a text, a number, true or false"}))
        self.assertEqual(ask({"parameters": {"timeout": "2s"}}), (400, {"error": "parameters.timeout is not a whole number of microseconds from 0 on"}))

    def test_all_values_of_uint64_are_kept_and_a_script_has_their_bits(self):
        url, values = self.serve_script(WIDE, "wide"), [0, 10, 2**63 - 1, 2**63, 2**64 - 1]
        head = {"name": "x", "datatype": "UINT64", "shape": [5]}
        large = {"name": "large", "datatype": "BOOL", "shape": [5], "data": [False, True, True, True, True]}
        status, answer, _ = self.post(url, json.dumps({"inputs": [{**head, "data": values}]}).encode())
        self.assertEqual([status, answer.get("outputs")], [200, [large, {**head, "data": values}]], answer)
        log = "got i64: 0 10 9223372036854775807 -9223372036854775808 -1\n"
        self.until("the log is written", lambda: log in self.good("logs", "last", "wide").out)

        binary = struct.pack("<5Q", *values)
        body = json.dumps({"inputs": [{**head, "parameters": {"binary_data_size": len(binary)}}],
                           "outputs": [{"name": "x", "parameters": {"binary_data": True}}]}).encode()
        status, _, tail = self.post(url, body + binary, **{"Inference-Header-Content-Length": str(len(body))})
        self.assertEqual([status, tail], [200, binary])


if __name__ == "__main__":
    main()
