-- ranks: 3
-- The optimizer whose moments are shared out over the ranks does what the plain one does, to the bit.
local x, y = flow.randn({ 9, 5 }, { seed = 1 }), flow.randint(1, 3, { 9 }, { seed = 2 })
local function make()
  math.randomseed(3)
  return flow.nn.sequential { flow.nn.linear(5, 7), flow.nn.tanh(), flow.nn.linear(7, 3) }
end
local function steps(model, opt, count, keeps_rate)
  for step = 1, count do
    opt:zero_grad()
    flow.nn.cross_entropy(model(x), y):backward()
    if not keeps_rate then opt:set_lr(0.1 / step) end
    opt:step(0.5)
  end
  return model, opt
end
local function is_same(a, b)
  local same = true
  for i, parameter in ipairs(a:parameters()) do same = same and parameter == b:parameters()[i] end
  return same
end
local function is_same_state(a, b)
  return flow.json.encode(flow.table.keys(a)) == flow.json.encode(flow.table.keys(b)) and a.steps == b.steps and a.lr == b.lr
    and flow.json.encode(a.counts) == flow.json.encode(b.counts)
    and #flow.table.filter(a.mean or a.momentum, function(each, i) return each ~= (b.mean or b.momentum)[i] end) == 0
end

local makers = { { flow.optim.adamw, { lr = 0.1 } }, { flow.optim.sgd, { lr = 0.1, momentum = 0.9 } }, { flow.optim.sgd, {} } }
for _, each in ipairs(makers) do
  local plain = make()
  local plain_opt = each[1](plain, each[2])
  steps(plain, plain_opt, 4)
  local model = make()
  local opt = flow.optim.sharded(ctx.comm, each[1], model, each[2])
  steps(model, opt, 4)
  print(is_same(model, plain), is_same_state(opt:state(), plain_opt:state()))
  -- expect: true	true
  -- expect: true	true
  -- expect: true	true

  -- A state moves from one optimizer to the other, and continues.
  local other = make()
  other:load(plain:state())
  local loaded = flow.optim.sharded(ctx.comm, each[1], other, each[2]):load(plain_opt:state())
  local third = make()
  third:load(model:state())
  local back = each[1](third, each[2]):load(opt:state())
  steps(plain, plain_opt, 2)
  print(is_same(steps(other, loaded, 2), plain), is_same(steps(third, back, 2), plain))
  -- expect: true	true
  -- expect: true	true
  -- expect: true	true
end

-- A third of the moments is on this rank.
local model = make()
local opt = flow.optim.sharded(ctx.comm, flow.optim.adamw, model)
local held = 0
for _, mean in ipairs(opt.inner.mean) do held = held + mean:count() end
print(model:count(), held)
-- expect rank 0: 66	22
-- expect rank 1: 66	22
-- expect rank 2: 66	22

-- Groups, parameters without a gradient, and fewer numbers than ranks.
local a, b = flow.ones(2):requires_grad_(), flow.ones(1):requires_grad_()
local groups = flow.optim.sharded(ctx.comm, flow.optim.sgd, { { params = { a }, lr = 1 }, { params = { b }, lr = 0.5 } })
a:sum():backward()
groups:step()
print(a:detach():sum(), b:detach():sum(), table.concat(groups:state().counts, " "))  -- expect: 0.0	1.0	1 0
local one = flow.ones(1):requires_grad_()
local small = flow.optim.sharded(ctx.comm, flow.optim.adamw, { one }, { lr = 1, weight_decay = 0 })
one:sum():backward()
small:step()
print(("%.3f"):format(one:item()), small:state().mean[1]:count(), small:state().steps)  -- expect: 0.000	1	1
print(pcall(function() opt:step() end))  -- expect: false	sharded.lua:76: opt:step: no parameter has a gradient: call loss:backward() before it
print(pcall(function() opt:load { steps = 1, mean = { flow.ones(2) } } end))  -- expect: false	sharded.lua:77: opt:load takes the result of opt:state() of an optimizer of the same model
print(pcall(function() flow.optim.sharded(ctx.comm, flow.optim.adamw, 3) end))  -- expect: false	sharded.lua:78: flow.optim.sharded takes ctx.comm, an optimizer, a model and options: flow.optim.sharded(ctx.comm, flow.optim.adamw, model, { lr = 1e-3 })
local frozen = make():requires_grad_(false)
for _, given in ipairs { frozen, frozen:parameters(), { { params = frozen } } } do
  print(select(2, pcall(function() flow.optim.sharded(ctx.comm, flow.optim.adamw, given) end)))
end
-- expect: sharded.lua:81: flow.optim.sharded got an empty list of parameters: the model has none, or is frozen; model:requires_grad_(true) unfreezes it
-- expect: sharded.lua:81: flow.optim.sharded got an empty list of parameters: the model has none, or is frozen; model:requires_grad_(true) unfreezes it
-- expect: sharded.lua:81: flow.optim.sharded got an empty list of parameters: the model has none, or is frozen; model:requires_grad_(true) unfreezes it

-- A group with a rate of 0 does not change, on any rank and also after loading a state, as without ranks.
for _, each in ipairs(makers) do
  for _, rates in ipairs { { 0, 0.1 }, { 0.1, 0 }, { 0, 0 } } do
    local function groups_of(model)
      return { { params = model[1], lr = rates[1] }, { params = model[3], lr = rates[2] } }
    end
    local plain, model, other, start = make(), make(), make(), make()
    local plain_opt = each[1](groups_of(plain), each[2])
    local opt = flow.optim.sharded(ctx.comm, each[1], groups_of(model), each[2])
    steps(plain, plain_opt, 2, true)
    steps(model, opt, 2, true)
    local is_alike = is_same(model, plain)
    other:load(model:state())
    local loaded = flow.optim.sharded(ctx.comm, each[1], groups_of(other), each[2]):load(opt:state())
    steps(plain, plain_opt, 1, true)
    steps(other, loaded, 1, true)
    is_alike = is_alike and is_same(other, plain) and flow.json.encode(opt:state().rates) == flow.json.encode(rates)
    print(is_alike, other[1].weight == start[1].weight, other[3].weight == start[3].weight)
  end
end
-- expect: true	true	false
-- expect: true	false	true
-- expect: true	true	true
-- expect: true	true	false
-- expect: true	false	true
-- expect: true	true	true
-- expect: true	true	false
-- expect: true	false	true
-- expect: true	true	true

-- Together with shared gradients.
local whole = make()
steps(whole, flow.optim.adamw(whole, { lr = 0.1 }), 5)
x, y = x[{ ctx.rank * 3 + 1, ctx.rank * 3 + 3 }], y[{ ctx.rank * 3 + 1, ctx.rank * 3 + 3 }]
local split = flow.nn.data_parallel(make(), ctx.comm)
steps(split, flow.optim.sharded(ctx.comm, flow.optim.adamw, split, { lr = 0.1 }), 5)
local distance = 0
for i, parameter in ipairs(split:parameters()) do
  distance = math.max(distance, (parameter:detach() - whole:parameters()[i]:detach()):abs():amax())
end
print(distance < 1e-5)  -- expect: true
