#!/usr/bin/env python3
"""Tasks on a real GPU: what they get, what they leave, and what happens when they die.

usage: tasks.py --flow BIN [TEST...]     exits with 77 if flow finds no GPU
"""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "state"))
from place import Place, main  # noqa: E402

HEAD = 'local flow = require "flow"\n'
# Trains on random data; saves each step. Ends its executor by SIGKILL before step `dies` of the first attempt.
TRAIN = HEAD + r'''
local train = flow.task("train", { gpus = 1, cache = false, retries = 1 }, function(ctx, steps, dies)
  local model = flow.nn.sequential { flow.nn.linear(64, 256), flow.nn.relu(), flow.nn.linear(256, 10) }
  flow.no_grad(function()
    for _, parameter in pairs(model:parameters()) do parameter:copy_(flow.randn(parameter.shape, { seed = 3 }) * 0.1) end
  end)
  model = model:to("cuda")
  local opt = flow.optim.adamw(model, { lr = 1e-3 })
  local state = ctx:restore()
  if state then
    model:load(state.model)
    opt:load(state.opt)
  end
  for step = state and state.step + 1 or 1, steps do
    if step == dies and ctx.attempt == 1 then
      local stat = io.open("/proc/self/stat")
      os.execute("kill -9 " .. stat:read("n"))
    end
    local x = flow.randn({ 128, 64 }, { seed = step }):to("cuda")
    local y = flow.randint(1, 10, { 128 }, { seed = step }):to("cuda")
    opt:zero_grad()
    flow.nn.cross_entropy(model(x), y):backward()
    opt:step()
    ctx:checkpoint { step = step, model = model:state(), opt = opt:state() }
  end
  return { weights = model:state(), resumed = state ~= nil }
end)
return flow.pipeline("p", {}, function() return { train(40, 0), train(40, 25) } end)
'''
PERIL = HEAD + r'''
local wild = flow.kernel("wild", [[
__global__ void wild(float* x, long long n) { x[n + (1ll << 40)] = 1; }
]], "x: inout f32, n: count of x")
local bad = flow.task("bad", { gpus = 1, retries = 1 }, function(ctx)
  local x = flow.ones(8):to("cuda")
  if ctx.attempt == 1 then
    wild(x)
    return x:to("cpu")
  end
  return (x * 2):to("cpu")
end)
return flow.pipeline("p", {}, function() return bad() end)
'''
FULL = HEAD + r'''
local fill = flow.task("fill", { gpus = 1 }, function()
  local held, message = {}, nil
  for i = 1, 100 do
    local ok, x = pcall(flow.zeros, { 1 << 32 }, { device = "cuda" })
    if not ok then message = tostring(x) break end
    held[i] = x
  end
  local count = #held
  held = nil
  collectgarbage()
  local x = flow.ones({ 1 << 30 }, { device = "cuda" })
  local a = flow.ones({ 256, 256 }, { device = "cuda" })
  return { count = count, message = message, after = x[7], product = a:matmul(a)[1][1] }
end)
return flow.pipeline("p", {}, function() return fill() end)
'''
HALVES = HEAD + r'''
local half = flow.task("half", { gpus = 0.5, cache = false }, function(ctx, own, other)
  local x = flow.randn({ 2048, 2048 }, { seed = 1 }):to("cuda")
  io.open(own, "w"):close()
  while not io.open(other) do os.execute("sleep 0.02") end
  local y = x
  for _ = 1, 50 do y = (y:matmul(x) * 0.02):tanh() end
  return y:to("cpu")
end)
return flow.pipeline("p", {}, function() return { half("%s", "%s"), half("%s", "%s") } end)
'''
GANG = HEAD + r'''
local sum = flow.task("sum", { gpus = 0.5, ranks = 2 }, function(ctx)
  local x = flow.ones({ 1 << 20 }, { device = "cuda" }) * (ctx.rank + 1)
  ctx.comm:all_reduce(x, "sum")
  return { x:mean(), x.device }
end)
local alone = flow.task("alone", { gpus = 1, ranks = 1 }, function(ctx)
  local x = flow.ones({ 1 << 20 }, { device = "cuda" })
  ctx.comm:all_reduce(x, "sum")
  return { x:mean(), x.device }
end)
return flow.pipeline("p", {}, function() return { sum(), alone() } end)
'''
SEES = HEAD + r'''
local bare = flow.shell("bare", { command = [[nvidia-smi -L >/dev/null; echo "[$CUDA_VISIBLE_DEVICES]"]] })
local one = flow.shell("one", { gpus = 1, command = [[echo "$CUDA_VISIBLE_DEVICES"]] })
local lua = flow.task("lua", { gpus = 1 }, function(ctx) return { ctx.device, #ctx.dir > 0 } end)
return flow.pipeline("p", {}, function() return { bare().stdout, one().stdout, lua() } end)
'''


class Tasks(Place):
    def run_script(self, text, code=0):
        self.write("p.lua", text)
        self.exits(code, self.flow("run", "p.lua"))
        return self.show()["result"]

    def test_a_killed_training_ends_with_the_weights_of_one_that_was_not(self):
        whole, resumed = self.run_script(TRAIN)
        self.assertEqual((whole["resumed"], resumed["resumed"]), (False, True))
        self.assertEqual(whole["weights"], resumed["weights"])  # by digest

    def test_a_kernel_that_writes_outside_ends_its_attempt_only(self):
        self.run_script(PERIL)
        self.assertEqual(self.tasks()["bad"]["attempts"], 2)
        self.assertIn("illegal memory access", self.good("why", "last", "bad").out)

    def test_a_full_gpu_is_an_error_and_is_usable_after_it(self):
        result = self.run_script(FULL)
        print(result)
        self.assertGreater(result["count"], 0)
        self.assertIn("out of memory on cuda:0", result["message"])
        self.assertEqual((result["after"], result["product"]), (1, 256))

    def test_halves_of_a_gpu_run_together_and_give_the_same_bits(self):
        a, b = self.path("a"), self.path("b")
        left, right = self.run_script(HALVES % (a, b, b, a))
        self.assertEqual(left, right)
        tasks = self.tasks()
        self.assertEqual(tasks["half"]["gpus"], tasks["half#2"]["gpus"])

    def test_ranks_that_share_a_gpu_reduce_through_the_host(self):
        shared, alone = self.run_script(GANG)
        self.assertEqual((shared, alone), ([3, "cuda:0"], [1, "cuda:0"]))
        self.assertIn("go through the hosts' memory, not by NCCL", self.good("logs", "last", "sum").out)
        if self.has_nccl():
            self.assertIn("collectives between GPUs go by NCCL", self.good("logs", "last", "alone").out)

    def test_without_nccl_ranks_reduce_through_the_host(self):
        self.write("p.lua", GANG)
        self.exits(0, self.flow("run", "p.lua", FLOW_NCCL_LIB="off"))
        self.assertEqual(self.show()["result"], [[3, "cuda:0"], [1, "cuda:0"]])
        self.assertIn("go through the hosts' memory, not by NCCL", self.good("logs", "last", "alone").out)

    def has_nccl(self):
        checks = map(json.loads, self.good("doctor", "--json").out.splitlines())
        return any(check["check"].startswith("NCCL") and check["verdict"] == "ok" for check in checks)

    def test_a_task_sees_its_gpu_by_uuid_and_others_see_none(self):
        bare, one, (device, _) = self.run_script(SEES)
        self.assertEqual(bare, "[]\n")
        self.assertTrue(one.startswith("GPU-"), one)
        self.assertEqual(device, "cuda:0")
        self.assertEqual([one.strip()], self.tasks()["lua"]["gpus"])


def has_gpu():
    flow = sys.argv[sys.argv.index("--flow") + 1]
    shown = subprocess.run([flow, "doctor", "--json"], capture_output=True, text=True).stdout
    return any(json.loads(line)["check"].startswith("GPU ") for line in shown.splitlines())


if __name__ == "__main__":
    if "--flow" in sys.argv and not has_gpu():
        print("skipped: flow finds no GPU")
        sys.exit(77)
    main()
