#!/usr/bin/env python3
"""A served language model generates with its cache what it generates without.

usage: generate.py --flow BIN [TEST...]
"""
import json
import os
import sys
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

# 30 tokens are more than the context has room for.
SCRIPT = r'''
local flow = require "flow"
local size = { vocabulary = 40, context = 24, width = 32, heads = 4, layers = 2, rotary = true }
local train = flow.task("train", function(ctx)
  local model = flow.models.gpt(size)
  flow.no_grad(function()
    for i, each in ipairs(model:parameters()) do each:copy_(flow.randn(each.shape, { seed = i }) * 0.4) end
  end)
  return model:state()
end)
local writer = flow.service("writer", { port = 0 }, function(ctx, weights)
  local model = flow.models.gpt(size):load(weights)
  return { predict = function(inputs)
    local function tokens(cache)
      return flow.tensor(model:generate(inputs.prompts, 30, { temperature = 0.9, top = 5, seed = 7, cache = cache }))
    end
    return { cached = tokens(true), uncached = tokens(false) }
  end }
end)
return flow.pipeline("writer", {}, function() return writer(train()) end)
'''


def generated(url, prompts):
    """The answer's outputs by name: a list of tokens for each prompt."""
    data = [token for prompt in prompts for token in prompt]
    body = {"inputs": [{"name": "prompts", "shape": [len(prompts), len(prompts[0])], "datatype": "INT64", "data": data}]}
    with urllib.request.urlopen(url + "/v2/models/writer/infer", json.dumps(body).encode(), timeout=60) as answer:
        outputs = json.load(answer)["outputs"]
    return {each["name"]: [each["data"][i:i + each["shape"][1]] for i in range(0, len(each["data"]), each["shape"][1])]
            for each in outputs}


class Generate(Place):
    def setUp(self):
        super().setUp()
        self.write("pipeline.lua", SCRIPT)

    def clean(self):
        for run in self.runs():
            if run["status"] in ("running", "serving"):
                self.flow("stop", run["run"], "--grace", "1s")
        super().clean()

    def test_a_service_generates_with_the_cache_what_it_generates_without(self):
        url = self.detached("run", ".")["services"][0]["url"]
        together = generated(url, [[1, 2, 3, 4], [9, 8, 7, 6]])
        self.assertEqual(together["cached"], together["uncached"])
        self.assertEqual([len(tokens) for tokens in together["cached"]], [30, 30])
        self.assertNotEqual(*together["cached"])
        alone = generated(url, [[1, 2, 3, 4]])
        self.assertEqual(alone["cached"], together["cached"][:1])
        # A request leaves nothing to the next one.
        self.assertEqual(generated(url, [[5]])["cached"], generated(url, [[5]])["uncached"])


if __name__ == "__main__":
    main()
