-- Functions of flow.graph on a GPU, here the emulator: arguments, results and what cannot be recorded.
local function message(f, ...)
  local ok, problem = pcall(f, ...)
  return ok and "no error" or tostring(problem):gsub("^.-%.lua:%d+: ", "")
end
local function rejected(f, ...)
  local run = flow.graph(f)
  run(...)
  print((message(run, ...)))
end
local x = flow.ones({ 2, 3 }, "cuda")
rejected(function(x) return x:table() and x end, x)  -- expect: `table`: flow.graph cannot record a wait for the GPU's result: return the tensor from the function, and read it after the call
rejected(function(x) return x:sum() end, x)  -- expect: `sum`: flow.graph cannot record a wait for the GPU's result: return the tensor from the function, and read it after the call
rejected(function(x) return x + flow.tensor({ 1, 2, 3 }, "f32"):to("cuda") end, x)  -- expect: `to`: flow.graph cannot record a copy from the host: make the tensor before the call, and pass it as an argument if it differs between calls
rejected(function(x) return x + flow.tensor({ 1, 2, 3 }, { dtype = "f32", device = "cuda" }) end, x)  -- expect: `tensor`: flow.graph cannot record a copy from the host: make the tensor before the call, and pass it as an argument if it differs between calls
rejected(function(x) return x * math.random() end, x)  -- expect: math.random in the function of flow.graph would give the same number in each launch: pass the number as a tensor, or draw tensors, as by flow.rand
rejected(function(x) return { x } end, x)  -- expect: the function of flow.graph returned a table: it returns tensors, numbers, strings and booleans, one by one
rejected(function(x) return x:add_(1) end, flow.ones({ 2, 3 }, "cuda"))  -- expect: the function of flow.graph changed its tensor argument 1 in place, which is a copy: change a tensor that it captures, or return the result
local seed = 0
rejected(function(x) seed = seed + 1 math.randomseed(seed) return x end, x)  -- expect: the function of flow.graph sets the state of math.random, which its launches do not
local opt = flow.optim.adamw({ flow.nn.parameter(flow.ones(3, "cuda")) }, { lr = 1 })
rejected(function(x) if flow.is_capturing() then opt:set_lr(1) end return x end, x)  -- expect: opt:set_lr in the function of flow.graph would set the rate once: call it before each call of the graph
rejected(function(x) return flow.gbm { paths = 2, device = "cuda" } end, x)  -- expect: `gbm`: flow.graph cannot record flow.gbm without a seed
local weight = flow.nn.parameter(flow.ones({ 2, 3 }, "cuda"))
local sgd = flow.optim.sgd({ weight }, { lr = 0.1 })
rejected(function(x) (weight * x):sum():backward() sgd:step() return x end, x)  -- expect: `sgd_`: flow.graph cannot record x:sgd_, whose rate is a number: use flow.optim.adamw
weight.grad = nil
local calls = 0
rejected(function(x) calls = calls + 1 if calls == 2 then error("own", 0) end return x end, x)  -- expect: own
print((message(flow.graph(function(x) return x end), weight)))  -- expect: argument 1 of a function of flow.graph wants a gradient, which a graph does not pass on: pass x:detach()
print((message(flow.graph(function(x) return x end), x, x:to("cpu"))))  -- expect: the tensors that are passed to a function of flow.graph are on different devices, cuda:0 and cpu: move them to one
print((message(flow.graph, 3)))  -- expect: flow.graph takes a function, not a number
print((x * 2):to("cpu"):sum())  -- expect: 12.0

rejected(function(x) return x:sample() end, x)  -- expect: `sample`: flow.graph cannot record a wait for the GPU's result: return the tensor from the function, and read it after the call
print((message(flow.graph(function(batch) return batch.x end), { x = x })))  -- expect: argument 1 of a function of flow.graph is a table, whose tensors a graph would not read again: pass them one by one
print((message(flow.graph, function() end, {})))  -- expect: flow.graph takes a function only, not also a table

-- What the host writes before a launch stays until it is read, also where earlier results of the function were freed.
local function alike(make, argument)
  local found = {}
  for i, is_graph in ipairs { false, true } do
    math.randomseed(5)
    local f = make()
    if is_graph then f = flow.graph(f) end
    found[i] = {}
    for _ = 1, 4 do table.insert(found[i], flow.json.encode(f(argument):detach():to("cpu"):reshape(-1):table())) end
  end
  return table.concat(found[1]) == table.concat(found[2])
end
local eight = flow.ones(8, "cuda")
local function with_freed(f)
  return function() return function(x)
    local freed = (x * 3 + 1) * 7
    freed = nil
    collectgarbage()
    return f(x)
  end end
end
print(alike(with_freed(function() return flow.arange(8, { device = "cuda" }) * 1 end), eight))  -- expect: true
print(alike(with_freed(function(x) return x:dropout(0.5) end), eight))  -- expect: true
print(alike(function()
  local model = flow.nn.sequential { flow.nn.linear(4, 32), flow.nn.tanh(), flow.nn.linear(32, 4) }:to("cuda")
  local opt = flow.optim.adamw(model, { lr = 0.01 })
  return function(x)
    opt:zero_grad()
    local loss = ((model(x) - x) ^ 2):mean()
    loss:backward()
    opt:step()
    return loss
  end
end, flow.randn({ 16, 4 }, { device = "cuda", seed = 1 })))  -- expect: true
local kept, shared = {}, flow.zeros(1, { device = "cuda" })
local counting = flow.graph(function() shared:add_(1) return shared end)
for i = 1, 4 do kept[i] = counting() end
print(kept[1][1], kept[2][1], kept[3][1], kept[4][1])  -- expect: 1.0	2.0	3.0	4.0

-- Numbers and strings are part of the kind of a call; results that are no tensors are those of the recording.
local counted = 0
local scaled = flow.graph(function(x, factor, name)
  counted = counted + 1
  return x * factor + flow.arange(3, "cuda"):to("f32"), name, counted
end)
for at = 1, 4 do
  local y, name, count = scaled(x * at, 2, "two")
  print(y[1]:table()[3], name, count)
end
-- expect: 5.0	two	1
-- expect: 7.0	two	2
-- expect: 9.0	two	2
-- expect: 11.0	two	2
print(scaled(x, 3, "three")[1]:table()[3], counted)  -- expect: 6.0	3
print(scaled(x:t():contiguous():t(), 2, "two")[1]:table()[3], counted)  -- expect: 5.0	3

-- Random tensors differ between launches, as those of eager calls do.
local noisy = flow.graph(function(x) return x + flow.rand({ 2, 3 }, "cuda"), x:dropout(0.5) end)
local drawn = {}
math.randomseed(6)
for at = 1, 4 do drawn[at] = { noisy(x) } end
math.randomseed(6)
local equal = true
for at = 1, 4 do
  local a, b = x + flow.rand({ 2, 3 }, "cuda"), x:dropout(0.5)
  equal = equal and a == drawn[at][1] and b == drawn[at][2]
end
print(equal, drawn[2][1] == drawn[3][1])  -- expect: true	false

-- A graph within a graph is part of it. Without tensors the device is the one that the function uses.
local inner = flow.graph(function(x) return x * 2 end)
local total = flow.zeros({ 2, 3 }, "cuda")
local outer = flow.graph(function() total:add_(inner(x)) return total end)
for at = 1, 4 do outer() end
print(total[1]:table()[1])  -- expect: 8.0

-- Gradients that are summed over calls, and cleared outside of the graph. Some operations add to them in place.
local function accumulate(is_graph, compute_loss)
  math.randomseed(2)
  local w = flow.nn.parameter(flow.rand({ 3, 3 }, "cuda"))
  local runs = 0
  local back = function(x)
    runs = runs + 1
    local loss = compute_loss(x, w)
    loss:backward()
    return loss
  end
  if is_graph then back = flow.graph(back) end
  local sums = {}
  for at = 1, 12 do
    back(flow.full({ 2, 3 }, at, "cuda"))
    if at % 3 == 0 then
      sums[#sums + 1] = w.grad and w.grad:clone() or "no gradient"
      w.grad = nil
    end
  end
  return sums, runs
end
local bias, rows = flow.zeros(3, "cuda"), flow.full({ 2 }, 2, { dtype = "i64", device = "cuda" })
local losses = {
  product = function(x, w) return (x:matmul(w) ^ 2):mean() end,
  embedding = function(x, w) return (w:embedding(rows) * x):sum() end,
  norm = function(x, w) return (w:layer_norm(x[1], bias) ^ 3):mean() end,
}
for _, name in ipairs { "product", "embedding", "norm" } do
  local plain, count = accumulate(false, losses[name])
  local recorded, runs = accumulate(true, losses[name])
  local is_same = #plain == 4 and #recorded == 4
  for i, sum in ipairs(plain) do is_same = is_same and sum == recorded[i] end
  print(name, is_same, count, runs < count)
end
-- expect: product	true	12	true
-- expect: embedding	true	12	true
-- expect: norm	true	12	true

-- Leaves that the function makes, as the backward of flow.checkpoint and flow.fuse does, are no reason to record again.
local gain = flow.nn.parameter(flow.full({ 3 }, 2, "cuda"))
local function counts(name, compute_loss)
  local function trained(is_graph)
    local w = flow.nn.parameter(flow.full({ 3, 3 }, 0.5, "cuda"))
    local runs = 0
    local step = function(x)
      runs = runs + 1
      w.grad, gain.grad = nil, nil
      local loss = compute_loss(x, w)
      loss:backward()
      flow.no_grad(function() w:sub_(w.grad * 0.125) end)
      return loss
    end
    if is_graph then step = flow.graph(step) end
    local results = {}
    for at = 1, 6 do results[at] = step(flow.full({ 2, 3 }, at, "cuda")):detach() end
    return runs, results, w
  end
  local eager_runs, eager_results, eager_weight = trained(false)
  local runs, results, w = trained(true)
  local is_same = w == eager_weight
  for at = 1, 6 do is_same = is_same and results[at] == eager_results[at] end
  print(name, eager_runs, runs, is_same)
end
counts("plain", function(x, w) return (x:matmul(w) ^ 2):mean() end)  -- expect: plain	6	2	true
counts("checkpoint", function(x, w) return flow.checkpoint(function(x, w) return x:matmul(w):tanh() end, x, w):mean() end)  -- expect: checkpoint	6	2	true
counts("fuse", function(x, w) return flow.fuse(function(x) return (x * 2 + 1):tanh() end, x:matmul(w)):mean() end)  -- expect: fuse	6	2	true
counts("fuse of leaves", function(_, w) return flow.fuse(function(w, gain) return (w * gain + 1):tanh() end, w, gain):mean() end)  -- expect: fuse of leaves	6	2	true
-- expect: made inside	6	2	true
counts("made inside", function(x, w)
  local leaf = x:clone():requires_grad_()
  local own = (leaf ^ 2):sum()
  own:backward()
  return (leaf.grad:matmul(w) ^ 2):mean()
end)

-- Functions of flow.at_replay may call graphs, whose functions are called then.
local depth, busy, times_two = 0, false, nil
times_two = flow.graph(function(x, n)
  depth = depth + 1
  flow.at_replay(function()
    if busy then return end
    busy = true
    for j = 2, 12 do
      times_two(x, j)
      times_two(x, j)
    end
    busy = false
  end)
  return x * n
end)
for at = 1, 4 do print(times_two(flow.full({ 3 }, at, "cuda"), 2):table()[1], depth) end
-- expect: 2.0	1
-- expect: 4.0	2
-- expect: 6.0	24
-- expect: 8.0	46
local cleared = flow.nn.parameter(flow.ones({ 3 }, "cuda"))
local adds = flow.graph(function(x)
  local sum = (cleared * x):sum()
  sum:backward()
  flow.at_replay(function() cleared.grad = nil end)
  return x
end)
adds(x[1])
adds(x[1])
print((message(adds, x[1])))  -- expect: a function of flow.at_replay changed a gradient to which the function of flow.graph adds: change it before the call
-- The rates of a recorded step are set by the number that the step returned, with its list.
local stepped = flow.nn.parameter(flow.ones({ 3 }, "cuda"))
local function zeros() return flow.zeros({ 3 }, "cuda") end
local list, wrong = { { stepped, flow.ones({ 3 }, "cuda"), zeros(), zeros(), 1 } }, nil
local steps = flow.graph(function(x)
  local noise = x:dropout(0.5)
  local number = flow.adamw_(list, { lr = 0.1 })
  flow.at_replay(function()
    local given = wrong == "list" and { list[1], list[1] } or list
    flow.adamw_(given, { lr = 0.1 }, nil, number + (math.tointeger(wrong) or 0))
  end)
  return noise
end)
steps(x)
steps(x)
for _, each in ipairs { false, -1, 1, 1 << 40, "list", false } do
  wrong = each
  print((message(steps, x):gsub("%d+", "N")))
end
-- expect: no error
-- expect: the graph has no step of AdamW numbered N with N tensors: pass the list of the step and the number that it returned when it was recorded
-- expect: the graph has no step of AdamW numbered N with N tensors: pass the list of the step and the number that it returned when it was recorded
-- expect: the graph has no step of AdamW numbered N with N tensors: pass the list of the step and the number that it returned when it was recorded
-- expect: the graph has no step of AdamW numbered N with N tensors: pass the list of the step and the number that it returned when it was recorded
-- expect: no error

-- A tensor that the function captured is kept with its graph. An index out of range is reported at the next wait.
local words = flow.arange(12, "cuda"):to("f32"):reshape(4, 3)
local look = flow.graph(function(index) return words:embedding(index) end)
for at = 1, 3 do look(flow.full({ 2 }, at, { dtype = "i64", device = "cuda" })) end
local kept = look
words = nil
collectgarbage()
local other = flow.zeros({ 64, 64 }, "cuda")
print(kept(flow.full({ 2 }, 4, { dtype = "i64", device = "cuda" }))[1]:table()[3], other:size(1))  -- expect: 12.0	64
local lost = look(flow.full({ 2 }, 9, { dtype = "i64", device = "cuda" }))
print((message(function() return lost:table() end)):match("^an index was outside its tensor on cuda:0"))  -- expect: an index was outside its tensor on cuda:0
print(look(flow.full({ 2 }, 1, { dtype = "i64", device = "cuda" }))[1]:table()[3])  -- expect: 3.0

-- On the CPU the function is called each time.
local times = 0
local on_cpu = flow.graph(function(x) times = times + 1 return x * 2 end)
for at = 1, 3 do on_cpu(flow.ones(2)) end
print(times, flow.is_capturing())  -- expect: 3	false
flow.at_replay(function() error("not while nothing is recorded") end)
