#!/usr/bin/env python3
"""Ranks of a gang exchange tensors on emulated GPUs: through host memory, and by a fake NCCL whose calls run in the order
of their stream.

usage: FLOW_TEST_NVML=LIBRARY FLOW_TEST_NCCL=LIBRARY gang_gpus.py --flow BIN [TEST...]
"""
import collections
import json
import os
import signal
import time

from cluster_place import place

GPUS = "".join("gpu GPU-%s 1024 emulated\n" % name for name in ("aa11", "bb22", "cc33"))
BY_NCCL = "collectives between GPUs go by NCCL 2.28.9"
THROUGH_HOSTS = "tensors on GPUs go through the hosts' memory, not by NCCL: "

# All operations of ctx.comm with tensors, on `device`. The results are exact for any order of sums.
OPERATIONS = r'''
local flow = require "flow"
local function ops(ctx, device, mixed)
  local comm, rank = ctx.comm, ctx.rank
  if mixed and rank ~= 0 then device = "cpu" end
  local seen = {}
  local function add(name, x)
    if x.device ~= (device == "cpu" and "cpu" or "cuda:0") then error(name .. " lies on " .. x.device) end
    seen[#seen + 1] = { name, x.dtype, x.shape, x:to("cpu"):to(x.dtype == "bool" and "bool" or "f64"):flatten():table() }
  end
  local function make(count, dtype) return (flow.arange(count) + rank * 10):to(dtype or "f32"):to(device) end
  for _, op in ipairs { "sum", "max", "min" } do
    for _, dtype in ipairs { "f32", "f64", "f16", "bf16", "i64", "i32", "u8" } do add(op, comm:all_reduce(make(5, dtype), op)) end
  end
  for _, dtype in ipairs { "f32", "f64", "f16", "bf16" } do add("mean", comm:all_reduce((make(5) * 3):to(dtype), "mean")) end
  add("any", comm:all_reduce(flow.tensor { rank == 1, false }:to(device), "max"))
  add("scatter", comm:reduce_scatter(make(6)))
  add("scattered maxima", comm:reduce_scatter(make(9, "i64"):reshape(3, 3), "max"))
  add("gather", comm:all_gather(make(4, "bf16"):reshape(2, 2)))
  add("exchange", comm:all_to_all(make(12, "i32"):reshape(6, 2)))
  add("broadcast", comm:broadcast(make(3), 2))
  -- What is used at once, before and after; what has gaps; what is empty, and what is long.
  local x = make(1000)
  x:mul_(2)
  comm:all_reduce(x)
  x:add_(1)
  add("chain", x[{ 1, 20 }])
  local wide = flow.zeros(4, 3):to(device)
  wide[{ { 1, 4 }, { 2, 2 } }]:copy_(make(4):reshape(4, 1))
  comm:all_reduce(wide[{ { 1, 4 }, { 2, 2 } }])
  add("gaps", wide)
  add("none", comm:all_reduce(flow.zeros(0):to(device)))
  add("long", comm:all_reduce(flow.ones(3000000):to(device)):reshape(3, -1):sum(2))
  local many = {}
  for i = 1, 6 do many[i] = make(i, i % 2 == 0 and "f32" or "i64") end
  many[7] = flow.ones(70000):to(device) * rank
  for i, y in ipairs(comm:all_reduce(many)) do add("list", i < 7 and y or y[{ 69990, 70000 }]) end
  -- Several under way at once, and what is computed meanwhile.
  local handles = {}
  for i = 1, 4 do handles[i] = comm:all_reduce(make(i * 100), "sum", { async = true }) end
  local other = make(50) * 7
  for i = 4, 1, -1 do add("async", handles[i]:wait()[{ 1, 5 }] * 2) end
  add("meanwhile", other)
  add("async gather", comm:all_gather(make(2), { async = true }):wait())
  -- Between two.
  local after, before = (rank + 1) % ctx.ranks, (rank + ctx.ranks - 1) % ctx.ranks
  local sent = comm:send(make(70000), after, { async = true })
  local came = make(70000)
  comm:recv(came, before)
  sent:wait()
  add("ring", came[{ 1, 4 }])
  comm:barrier()
  comm:all_reduce(make(10), { async = true })  -- the attempt's end waits for it
  return seen
end
local options = { ranks = 3 }
GIVEN
local on_gpus = flow.task("on_gpus", options, function(ctx, mixed) return ops(ctx, "cuda", mixed) end)
local on_cpus = flow.task("on_cpus", { ranks = 3 }, function(ctx) return ops(ctx, "cpu") end)
return flow.pipeline("ops", function() return { on_gpus(MIXED), on_cpus() } end)
'''
TRAIN = r'''
local flow = require "flow"
local function train(ctx, device)
  math.randomseed(1)
  local net = flow.nn.sequential { flow.nn.linear(5, 7), flow.nn.tanh(), flow.nn.linear(7, 3) }:to(device)
  local x, y = flow.randn({ 12, 5 }, { seed = 1 }):to(device), flow.randint(1, 3, { 12 }, { seed = 2 }):to(device)
  local share = 12 // ctx.ranks
  local own = { ctx.rank * share + 1, ctx.rank * share + share }
  local model = flow.nn.data_parallel(net, ctx.comm, { bucket = 64 })
  local opt = flow.optim.sharded(ctx.comm, flow.optim.adamw, model, { lr = 0.05 })
  for _ = 1, 4 do
    opt:zero_grad()
    flow.nn.cross_entropy(model(x[own]), y[own]):backward()
    opt:step()
  end
  local all = {}
  for _, parameter in ipairs(model:parameters()) do all[#all + 1] = parameter:detach():flatten() end
  local bits = flow.cat(all)
  local everywhere = ctx.comm:all_gather(bits:reshape(1, -1))
  for rank = 2, ctx.ranks do assert(everywhere[1] == everywhere[rank], "the ranks differ") end
  return bits:to("cpu"):table()
end
local on_gpus = flow.task("on_gpus", { ranks = 3, gpus = 1 }, function(ctx) return train(ctx, "cuda") end)
local on_cpus = flow.task("on_cpus", { ranks = 3 }, function(ctx) return train(ctx, "cpu") end)
return flow.pipeline("train", function() return { on_gpus(), on_cpus() } end)
'''
# All ranks enter the second call, which one rank's GPU never begins.
BREAK = r'''
local flow = require "flow"
local work = flow.task("work", { ranks = 3, gpus = 1, retries = 0, env = { FLOW_COLLECTIVE_TIMEOUT = "LIMIT" } }, function(ctx, what, path)
  local file = io.open(path .. ".pid" .. ctx.rank, "w")
  file:write(io.open("/proc/self/stat"):read("n"))
  file:close()
  local x = ctx.comm:all_reduce(flow.ones(10):to("cuda"))
  assert(x:sum() == 30)
  if ctx.rank == 1 and what == "other" then ctx.comm:all_reduce(flow.ones(10)) end
  if ctx.rank == 1 and what == "shape" then ctx.comm:all_reduce(flow.ones(11):to("cuda")) end
  if ctx.rank == 1 and what == "error" then error("out of cheese") end
  ctx.comm:all_reduce(x)
  io.open(path .. ".called" .. ctx.rank, "w"):close()
  local sum = x:sum()
  io.open(path .. ".wrong" .. ctx.rank, "w"):close()
  return sum
end)
return flow.pipeline("breaks", { what = flow.param.string {}, path = flow.param.string {} }, function(p) return work(p.what, p.path) end)
'''


class GangGpus(place.Place):
    def setUp(self):
        super().setUp()
        self.env.pop("CUDA_VISIBLE_DEVICES", None)
        self.write("machine", GPUS)
        self.env.update(FLOW_NVML_LIB=os.environ["FLOW_TEST_NVML"], FLOW_FAKE_NVML=self.path("machine"),
                        FLOW_NCCL_LIB=os.environ["FLOW_TEST_NCCL"], FLOW_FAKE_NCCL_LOG=self.path("calls"))

    def roads(self):
        return [(line["rank"], line["text"]) for line in self.good("logs", "--json").lines()]

    def runs_alike(self, options, mixed=False, **env):
        """Runs the operations on GPUs and on CPUs, and returns the routes that they used."""
        self.write("ops.lua", OPERATIONS.replace("GIVEN", options).replace("MIXED", "true" if mixed else "false"))
        done = self.good("run", "ops.lua", "--json", "--jobs", "3", "--fresh", **env)
        on_gpus, on_cpus = json.loads(done.out.splitlines()[-1])["result"]
        self.assertGreater(len(on_cpus), 40)
        self.assertEqual(on_gpus, on_cpus)
        return self.roads()

    def nccl_calls(self):
        """{(operation, type): number of calls} of rank 0."""
        if not os.path.exists(self.path("calls")):
            return {}
        calls = [line.split() for line in self.read("calls").splitlines()]
        return collections.Counter((what, int(kind)) for rank, what, _, kind in calls if rank == "0")

    def test_every_nccl_operation_gives_the_result_of_cpus(self):
        for when in "late", "early":
            self.assertEqual(self.runs_alike("options.gpus = 1", FLOW_EMULATED_STREAMS=when), [(0, BY_NCCL)])
            calls = self.nccl_calls()
            self.assertEqual(calls.pop(("group", 0)), 1, "a list of seven tensors is one launch")
            self.assertEqual({what for what, _ in calls}, {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "send", "recv"})
            # NCCL's numbers of the types: u8 1, i32 2, i64 4, f16 6, f32 7, f64 8, bf16 9.
            self.assertEqual({kind for what, kind in calls if what == "all_reduce"}, {1, 2, 4, 6, 7, 8, 9})
            self.assertEqual(calls["send", 2], 3, "all_to_all is a group of messages")
            os.unlink(self.path("calls"))

    def test_ranks_load_kernels_and_libraries_before_their_first_collective(self):
        self.write("loads.lua", '''
local flow = require "flow"
local loads = flow.task("loads", { ranks = 2, gpus = 1 }, function(ctx)
  ctx.comm:all_reduce(flow.ones(1):to("cuda"))
  local program <close> = io.popen("echo ${CUDA_MODULE_LOADING-unset}")
  return program:read("l")
end)
return flow.pipeline("loads", function() return loads() end)
''')
        self.good("run", "loads.lua", FLOW_EMULATED_LOG=self.path("loaded"))
        self.assertEqual(self.read("loaded"), "kernels EAGER\n" * 2)
        self.assertEqual(self.show()["result"], "unset")

    def test_only_tasks_that_share_a_gpu_return_its_cached_memory(self):
        for gpus, log in ("1", ""), ("0.5", "trim\n"):
            self.write("memory.lua", '''
local flow = require "flow"
local fill = flow.task("fill", { gpus = %s }, function() return flow.ones(1000):to("cuda"):sum() end)
return flow.pipeline("memory", function() return fill() end)
''' % gpus)
            self.write("trims", "")
            self.good("run", "memory.lua", "--fresh", FLOW_EMULATED_LOG=self.path("trims"))
            self.assertEqual(self.read("trims"), log)

    def test_shared_gpus_exchange_through_host_memory(self):
        self.write("machine", GPUS.splitlines(True)[0])
        self.assertEqual(self.runs_alike("options.gpus = 0.25"), [(0, THROUGH_HOSTS + "ranks 0 and 1 share GPU-aa11")])
        self.assertEqual(self.nccl_calls(), {})

    def test_without_nccl_tensors_pass_through_host_memory(self):
        (rank, text), = self.runs_alike("options.gpus = 1", FLOW_NCCL_LIB="/nowhere.so")
        self.assertIn(THROUGH_HOSTS + "rank 0: NCCL can't be used: it can't be loaded: /nowhere.so", text)
        self.assertEqual(self.runs_alike("options.gpus = 1", FLOW_NCCL_LIB="off"),
                         [(0, THROUGH_HOSTS + "rank 0: NCCL can't be used: it is disabled by FLOW_NCCL_LIB")])

    def test_parts_of_gpus_exchange_through_host_memory(self):
        self.write("machine", "gpu GPU-aa11 1024 emulated\n" + "".join("mig MIG-%d 300 emulated MIG\n" % i for i in range(3)))
        self.assertEqual(self.runs_alike("options.gpus = 1"), [(0, THROUGH_HOSTS + "rank 0 has a part of a GPU in MIG mode, MIG-0")])

    def test_tensors_of_one_rank_may_be_on_a_gpu_and_the_others_on_cpus(self):
        self.runs_alike("options.gpus = 1", mixed=True, FLOW_NCCL_LIB="off")

    def test_training_on_gpus_equals_training_on_cpus(self):
        self.write("train.lua", TRAIN)
        for road in os.environ["FLOW_TEST_NCCL"], "off":
            done = self.good("run", "train.lua", "--json", "--jobs", "3", "--fresh", FLOW_NCCL_LIB=road)
            on_gpus, on_cpus = json.loads(done.out.splitlines()[-1])["result"]
            for one, other in zip(on_gpus, on_cpus, strict=True):
                self.assertAlmostEqual(one, other, places=4)
        self.assertIn("all_gather", {what for what, _ in self.nccl_calls()})

    # ---- failures

    def breaks(self, what, timeout="10m", **env):
        self.write("breaks.lua", BREAK.replace("LIMIT", timeout))
        for name in os.listdir(self.folder):
            if name.startswith("at."):
                os.unlink(self.path(name))
        return self.start("run", "breaks.lua", "--json", "--jobs", "3", "--fresh", "--param", "what=" + what,
                          "--param", "path=" + self.path("at"), **env)

    def cause(self, client):
        began = time.monotonic()
        self.exits(1, self.end(client))
        why = json.loads(self.good("why", "last", "work", "--json").out)["why"]
        for rank in range(3):
            self.assertFalse(os.path.exists(self.path("at.wrong%d" % rank)), "numbers of a collective that was ended were used")
        self.took = time.monotonic() - began
        return why.split("cause: ", 1)[1].split("\n", 1)

    def test_a_rank_that_is_killed_during_a_collective_ends_the_others(self):
        client = self.breaks("hang", FLOW_FAKE_NCCL_HANG="1 2")
        self.until("all wait", lambda: all(os.path.exists(self.path("at.called%d" % rank)) for rank in range(3)))
        os.kill(int(self.read("at.pid1")), signal.SIGKILL)
        cause, message = self.cause(client)
        self.assertEqual(cause, "signal", message)
        for word in "rank 1 of 3: ", "signal 9", "rank 1: its process", "it was last in all_reduce":
            self.assertIn(word, message)

    def test_a_collective_that_hangs_on_the_gpu_ends_at_its_deadline(self):
        cause, message = self.cause(self.breaks("hang", "2s", FLOW_FAKE_NCCL_HANG="1 2"))
        self.assertIn("all_reduce(sum) of 10 f32 (#2) has not ended for 2000 ms on its GPU", message)

    def test_mismatched_calls_of_ranks_are_reported(self):
        cause, message = self.cause(self.breaks("other"))
        self.assertEqual(cause, "user_error", message)
        self.assertIn("all_reduce(sum) of 10 f32 on a GPU", message)
        self.assertIn("rank 1 called all_reduce(sum) of 10 f32:", message)
        cause, message = self.cause(self.breaks("shape"))
        self.assertEqual(cause, "user_error", message)
        self.assertIn("rank 1 called all_reduce(sum) of 11 f32 on a GPU", message)

    def test_a_rank_that_fails_is_the_cause(self):
        cause, message = self.cause(self.breaks("error"))
        self.assertEqual(cause, "user_error", message)
        self.assertIn("out of cheese", message)

    def test_a_cancel_ends_ranks_that_wait_for_a_gpu(self):
        client = self.breaks("hang", FLOW_FAKE_NCCL_HANG="1 2")
        self.until("all wait", lambda: all(os.path.exists(self.path("at.called%d" % rank)) for rank in range(3)))
        self.good("cancel", "last")
        self.end(client)
        self.assertEqual(self.show()["status"], "cancelled")

    def test_an_attempt_with_large_products_is_warned_once_that_no_library_does_them(self):
        self.write("products.lua", '''
local flow = require "flow"
local multiply = flow.task("multiply", { gpus = 1 }, function(ctx, size)
  local x = flow.ones(size, 800):to("cuda")
  for _ = 1, 2 do x:matmul(flow.ones(800, size):to("cuda")):sum() end
end)
return flow.pipeline("products", function() return { multiply(100), multiply(800) } end)
''')
        self.good("run", "products.lua")
        (task, text), = [(line["task"], line["text"]) for line in self.good("logs", "--json").lines()]
        self.assertTrue(text.startswith("warning: a large matrix product is done by flow's own kernel, which is many times slower"), text)
        self.assertIn("multiply", task)

    def test_doctor_shows_which_nccl_is_used(self):
        def said(**env):
            lines = {line["check"]: line for line in self.good("doctor", "--json", **env).lines()}
            return lines["NCCL"]["verdict"], lines["NCCL"]["text"], lines["CUDA"]["text"]
        verdict, text, cuda = said()
        # This build supports no GPUs and names the option that left them out.
        if cuda.startswith("left out"):
            return self.assertEqual((verdict, text), ("ok", "loaded where it is needed (libnccl.so.2)"))
        self.assertEqual((verdict, text), ("ok", "NCCL 2.28.9, " + os.environ["FLOW_TEST_NCCL"]))
        verdict, text, _ = said(FLOW_NCCL_LIB="/nowhere.so")
        self.assertEqual(verdict, "warning")
        self.assertIn(THROUGH_HOSTS + "NCCL can't be used: it can't be loaded: /nowhere.so", text)


place.main()
