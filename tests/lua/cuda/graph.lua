-- Training steps by flow.graph on a GPU, here the emulator, have the bits of eager steps.
local size = { vocabulary = 11, context = 8, width = 16, heads = 2, layers = 1, dropout = 0.1 }
local function batch(seed, length)
  local function draw(number) return flow.randint(1, 11, { 2, length }, { seed = number, device = "cuda" }) end
  return draw(seed), draw(seed + 100)
end
local function trainer(options, is_graph)
  math.randomseed(7)
  local model = flow.models.gpt(options):to("cuda")
  local opt = flow.optim.adamw(model, { lr = 1e-2 })
  local function step(x, y)
    local loss = flow.autocast("bf16", function() return model:loss(x, y) end)
    opt:zero_grad()
    loss:backward()
    local norm = flow.optim.clip_grad_norm(model, 1)
    opt:step()
    return loss, norm
  end
  return { model = model, opt = opt, step = is_graph and flow.graph(step) or step }
end
local rate = flow.optim.cosine { lr = 1e-2, warmup = 2, total = 12 }
-- Trains for the steps from `first` to `last`; the lengths of their batches take turns.
local function train(one, first, last, lengths)
  one.losses = one.losses or {}
  for at = first, last do
    one.opt:set_lr(rate(at))
    local loss, norm = one.step(batch(at, lengths[at % #lengths + 1]))
    table.insert(one.losses, loss)
    table.insert(one.losses, norm)
  end
end
local function same(a, b)
  local state, other = a.opt:state(), b.opt:state()
  local is_same = state.steps == other.steps and table.concat(state.counts, ",") == table.concat(other.counts, ",")
  local function compare(name, x, y)
    if x == y then return end
    print("differs", name)
    is_same = false
  end
  for i, parameter in ipairs(a.model:parameters()) do
    compare("parameter " .. i, parameter, b.model:parameters()[i])
    compare("mean " .. i, state.mean[i], other.mean[i])
    compare("square " .. i, state.square[i], other.square[i])
    if parameter.grad then compare("grad " .. i, parameter.grad, b.model:parameters()[i].grad) end
  end
  for i, loss in ipairs(a.losses) do compare("result " .. i, loss:detach(), b.losses[i]:detach()) end
  return is_same and #a.losses == #b.losses
end

-- A training step with dropout, mixed precision, clipping and a schedule; results are kept.
local eager = trainer(size, false)
train(eager, 1, 4, { 8 })
local after_eager = math.random()
local graph = trainer(size, true)
train(graph, 1, 4, { 8 })
print(same(eager, graph), after_eager == math.random())  -- expect: true	true
-- Weights that were changed and states that were loaded in between; other shapes; then the first shape again.
for _, each in ipairs { eager, graph } do
  math.randomseed(8)
  local parameter = each.model:parameters()[3]
  flow.no_grad(function() parameter:copy_(parameter * 0.5) end)
  each.opt:load(each.opt:state())
  train(each, 5, 6, { 8 })
  train(each, 7, 11, { 8, 6 })
end
print(same(eager, graph))  -- expect: true
-- Eager steps between launches.
for _, each in ipairs { eager, graph } do
  math.randomseed(9)
  local x, y = batch(3, 8)
  flow.autocast("bf16", function() return each.model:loss(x, y) end):backward()
  each.opt:step()
  train(each, 12, 13, { 8 })
end
print(same(eager, graph))  -- expect: true
-- Activation checkpoints draw the same dropout again.
local long = { vocabulary = 11, context = 8, width = 16, heads = 2, layers = 1, dropout = 0.2, rotary = true, checkpoint = true }
local first, second = trainer(long, false), trainer(long, true)
math.randomseed(3)
train(first, 1, 3, { 8 })
math.randomseed(3)
train(second, 1, 3, { 8 })
print(same(first, second))  -- expect: true

-- What cannot be recorded. The optimizer, the gradients and math.random are then as before.
local function broken(tail)
  local one = trainer(size, false)
  local run = flow.graph(function(x, y)
    local loss, norm = one.step(x, y)
    return tail(loss, x) or loss, norm
  end)
  return one, run
end
local function message(f, ...)
  local ok, problem = pcall(f, ...)
  return ok and "no error" or tostring(problem):gsub("^.-%.lua:%d+: ", "")
end
local waits = false
local one, run = broken(function(loss) if waits then return loss:item() end end)
local twin = trainer(size, false)
math.randomseed(4)
run(batch(1, 8))
math.randomseed(4)
twin.step(batch(1, 8))
math.randomseed(4)
local drawn = math.random()
math.randomseed(4)
one.losses, twin.losses = {}, {}
waits = true
print((message(run, batch(2, 8))))  -- expect: `item`: flow.graph cannot record a wait for the GPU's result: return the tensor from the function, and read it after the call
print(one.opt.steps, same(one, twin), math.random() == drawn)  -- expect: 1	true	true
waits = false
for _, each in ipairs { { one, run }, { twin, twin.step } } do
  math.randomseed(5)
  for at = 2, 3 do table.insert(each[1].losses, (each[2](batch(at, 8)))) end
end
print(same(one, twin))  -- expect: true
