local function why(f, ...)
  local ok, message = pcall(f, ...)
  print(ok and "no error" or (tostring(message):gsub("^%w+%.lua:%d+: ", "")))
end

local nn = flow.nn
local function fixed(x) return ("%.5f"):format(x) end
local function near(x, y, tolerance) return math.abs(x - y) <= tolerance * math.max(1, math.abs(y)) end

-- -log softmax, and (softmax - onehot) / n, computed in double precision with Python's math.
local logits = flow.tensor({ { 1, 2, 3 }, { 1, 1, 1 } }, "f32"):requires_grad_()
local loss = nn.cross_entropy(logits, flow.tensor { 3, 1 })
loss:backward()
local grad = logits.grad
print(fixed(loss:item()))  -- expect: 0.75311
print(fixed(grad[1][1]), fixed(grad[1][2]), fixed(grad[1][3]))  -- expect: 0.04502	0.12236	-0.16738
print(fixed(grad[2][1]), fixed(grad[2][2]))  -- expect: -0.33333	0.16667
loss = nn.cross_entropy(flow.tensor({ { 1000, -1000 } }, "f32"), flow.tensor { 2 })
print(loss:item(), loss.requires_grad)  -- expect: 2000.0	false

-- Algorithm 2 of Loshchilov and Hutter (2019), computed in double precision with Python: lr 0.1, weight decay 0.01,
-- gradients 0.5, -1, 0.25 of two weights that begin as 1 and -2.
local weight = flow.tensor({ 1, -2 }, "f32"):requires_grad_()
local opt = flow.optim.adamw({ weight }, { lr = 0.1, weight_decay = 0.01 })
for _, g in ipairs { 0.5, -1, 0.25 } do
  weight.grad = flow.full({ 2 }, g)
  opt:step()
  print(fixed(weight:detach()[1]), fixed(weight:detach()[2]))
end  -- expect: 0.89900	-2.09800
-- expect: 0.93471	-2.05929
-- expect: 0.94745	-2.04356

-- torch.optim.SGD: v = 0.9 v + g, w = w - lr v, computed by hand.
local slow = flow.tensor({ 1 }, "f32"):requires_grad_()
local sgd = flow.optim.sgd({ slow }, { lr = 0.5, momentum = 0.5 })
for _ = 1, 2 do
  slow.grad = flow.ones(1)
  sgd:step()
end
print(slow:detach()[1])  -- expect: -0.25

-- The gradients of every layer against finite differences.
local model = nn.sequential { nn.linear(3, 4), nn.tanh(), nn.linear(4, 4), nn.sigmoid(), nn.layer_norm(4),
  nn.linear(4, 5), nn.gelu(), nn.rms_norm(5), nn.linear(5, 2) }:to("f64")
local x, labels = flow.randn({ 6, 3 }, { seed = 3, dtype = "f64", requires_grad = true }), flow.tensor { 1, 2, 1, 2, 2, 1 }
model:zero_grad()
nn.cross_entropy(model(x), labels):backward()
local checked, wrong = 0, 0
local function compare(tensor)
  local analytic, flat = tensor.grad:reshape(-1), tensor:detach():reshape(-1)
  for i = 1, tensor:count() do
    local step, before = 1e-5, flat[i]
    local function at(value)
      flat[i] = value
      return flow.no_grad(function() return nn.cross_entropy(model(x), labels):item() end)
    end
    local numeric = (at(before + step) - at(before - step)) / (2 * step)
    flat[i] = before
    checked = checked + 1
    if not near(analytic[i], numeric, 1e-7) then wrong = wrong + 1 end
  end
end
for _, parameter in ipairs(model:parameters()) do compare(parameter) end
compare(x)
print(checked, model:count() + x:count(), wrong)  -- expect: 104	104	0

-- Gradients add up until zero_grad; state and load save and restore a model and its optimizer.
local layer = nn.linear(2, 2)
local function pass() layer(flow.ones(1, 2)):sum():backward() end
pass()
pass()
print(layer:gradients()[1][1])  -- expect: 2.0
layer:zero_grad()
print(layer:gradients()[1][1])  -- expect: 0.0
x = x:detach():to("f32")
local function train(m, o, steps)
  for _ = 1, steps do
    o:zero_grad()
    nn.cross_entropy(m(x), labels):backward()
    o:step()
  end
end
local a, b = nn.sequential { nn.linear(3, 2) }, nn.sequential { nn.linear(3, 2) }
for _, make in ipairs { flow.optim.adamw, function(m) return flow.optim.sgd(m, { momentum = 0.9 }) end } do
  local of_a, of_b = make(a), make(b)
  train(a, of_a, 3)
  b:load(a:state())
  of_b:load(of_a:state())
  train(a, of_a, 2)
  train(b, of_b, 2)
  print(a:state()["1.weight"] == b:state()["1.weight"], a:state()["1.bias"] == b:state()["1.bias"])
end  -- expect: true	true
-- expect: true	true

-- A user-defined class: parameters by name, buffers next to them, shared parts once, children in lists.
local Net = nn.class("Net")
function Net:init(width)
  self.layers = { nn.linear(width, width), nn.linear(width, width, { bias = false }) }
  self.shared = self.layers[1]
  self.scale = flow.full({ 1 }, 2)
end
function Net:forward(v)
  for _, each in ipairs(self.layers) do v = each(v):relu() end
  return v * self.scale
end
local net = Net(3)
local names = {}
for i, each in ipairs(net:named_parameters()) do names[i] = each.name end
print(table.concat(names, " "))  -- expect: layers.1.bias layers.1.weight layers.2.weight
print(flow.json.encode(flow.table.sorted(flow.table.keys(net:state()))), net:count())
-- expect: ["layers.1.bias","layers.1.weight","layers.2.weight","scale"]	21
local _, missing, extra = net:load({ scale = flow.full({ 1 }, 3), other = flow.ones(1) }, { strict = false })
print(#missing, extra[1], net.scale[1])  -- expect: 3	other	3.0
why(net.load, net, { other = flow.ones(1) })  -- expect: model:load: the state is not of this model: it lacks `layers.1.bias`, `layers.1.weight`, `layers.2.weight`, `scale`; it has `other` that the model has not; pass { strict = false } to load what fits

-- Two tensors with one name are rejected; one tensor at two such places is one.
local Clash = nn.class("Clash")
function Clash:init(other) self[1], self["1"] = flow.ones(1), other end
local alike = Clash(flow.zeros(1))
why(function() alike:state() end)  -- expect: model:state: the fields model[1] and model["1"] both have the name `1`: give one of them another
why(function() alike:load({}) end)  -- expect: model:load: the fields model[1] and model["1"] both have the name `1`: give one of them another
local at = select(2, pcall(function() local state = alike:state() return state end))
print((at:match("^nn.lua:%d+: model:state")) ~= nil)  -- expect: true
alike["1"] = alike[1]
print(#flow.table.keys(alike:state()))  -- expect: 1
alike["1"], alike.a, alike["a.b"] = nil, { b = flow.ones(1) }, flow.ones(1)
why(function() nn.sequential { alike }:state() end)  -- expect: model:state: the fields model[1]["a"]["b"] and model[1]["a.b"] both have the name `1.a.b`: give one of them another

-- Dropout acts while training only; a frozen model has no parameters.
local drop = nn.sequential { nn.dropout(0.5) }
local ones = flow.ones(1000)
local kept = drop(ones):gt(0):sum()
print(kept > 400 and kept < 600, drop:eval()(ones):sum())  -- expect: true	1000.0
print(#nn.linear(2, 2):requires_grad_(false):parameters())  -- expect: 0

-- The recomputed part of a checkpoint has the same gradients, including random numbers.
local function gradients_of(checkpointed)
  math.randomseed(7)
  local first, second = nn.linear(4, 4), nn.linear(4, 4)
  local function inner(v) return second((first(v):relu()):dropout(0.5)) end
  local input = flow.ones({ 3, 4 }, { requires_grad = true })
  local out = checkpointed and flow.checkpoint(inner, input) or inner(input)
  out:square():sum():backward()
  return input.grad, first.weight.grad, second.bias.grad
end
local p1, p2, p3 = gradients_of(false)
local q1, q2, q3 = gradients_of(true)
print(p1 == q1, p2 == q2, p3 == q3)  -- expect: true	true	true

-- A user-defined gradient.
local double = flow.custom_gradient(function(v) return v * 2 end, function(g, v) return g * 20 end)
local input = flow.ones({ 2 }, { requires_grad = true })
double(input):sum():backward()
print(flow.json.encode(input.grad:table()))  -- expect: [20.0,20.0]

local few = flow.custom_gradient(function(a, b) return a + b end, function(g, a, b) return g end)
why(function() few(input, 1):sum():backward() end)  -- expect: no error
why(function() few(input, flow.ones(2)):sum():backward() end)  -- expect: no error
why(function() few(flow.ones(2), input):sum():backward() end)  -- expect: a backward returns a gradient for each of the 2 tensors, or nil, not 1 values

-- Mixed precision rounds products; weights and their gradients stay f32.
local mixed = nn.linear(3, 2)
local rounded = flow.autocast("bf16", function() return mixed(flow.ones(1, 3)) end)
rounded:to("f32"):sum():backward()
print(rounded.dtype, mixed.weight.grad.dtype, mixed(flow.ones(1, 3)).dtype)  -- expect: bf16	f32	f32

-- An adapter begins without effect, learns alone, and can be added to the weights.
local base = nn.sequential { nn.linear(4, 4), nn.relu(), nn.linear(4, 2) }
local probe = flow.randn({ 5, 4 }, { seed = 1 })
local before = base(probe):detach()
nn.lora(base, { rank = 2, targets = { "3" } })
print(base(probe):detach() == before, base:count(), #base:parameters())  -- expect: true	12	2
local of_base = flow.optim.sgd(base, { lr = 0.1 })
base(probe):square():sum():backward()
of_base:step()
base(probe):square():sum():backward()
of_base:step()
local adapted = base(probe):detach()
nn.merge_lora(base)
print(adapted == before, (base(probe):detach() - adapted):abs():max() < 1e-5)  -- expect: false	true

-- A layer at two places has one adapter; one of its names suffices. A merged one can be trained again, as another type.
do
  local Twice = nn.class("Twice")
  function Twice:init()
    self.first = nn.linear(3, 3)
    self.list = { self.first, nn.linear(3, 3):requires_grad_(false) }
  end
  function Twice:forward(v) return self.list[2](self.list[1](self.first(v))) end
  local twice = Twice()
  local names, shared = #twice:parameters(), twice.first
  nn.lora(twice, { rank = 2, alpha = 2, targets = { "first" } })
  print(rawequal(twice.first, twice.list[1]), #twice:parameters(), twice.list[2].__name)  -- expect: true	2	Linear
  flow.no_grad(function() twice.first.up:fill_(1) end)
  twice:to("f64")
  local input = flow.randn({ 4, 3 }, { seed = 2, dtype = "f64" })
  local adapted = twice(input):detach()
  nn.merge_lora(twice)
  print(rawequal(twice.first, shared), rawequal(twice.list[1], shared), (twice(input):detach() - adapted):abs():max() < 1e-12)
  -- expect: true	true	true
  print(names, #twice:parameters(), twice.list[2].weight.requires_grad)  -- expect: 2	2	false
  -- Adapters of a part are merged with the whole.
  local whole = nn.sequential { Twice(), nn.linear(3, 1) }
  nn.lora(whole[1])
  print(#whole:parameters(), #nn.merge_lora(whole):parameters())  -- expect: 6	4
  -- A rejected call changes nothing.
  local before = twice(input):detach()
  why(nn.lora, twice, { targets = { "nowhere" } })  -- expect: flow.nn.lora: no linear layer's name contains one of the targets
  why(nn.lora, twice, { targets = "first" })  -- expect: flow.nn.lora: the option `targets` is a list of parts of names, as { "attention" }, not "first"
  why(nn.lora, twice, { targets = { 1 } })  -- expect: flow.nn.lora: the option `targets` is a list of parts of names, as { "attention" }, not such a table
  why(nn.lora, twice, { rank = 0.5 })  -- expect: flow.nn.lora: the option `rank` is a whole number of 1 or more, not 0.5
  why(nn.lora, twice, { alpha = "16" })  -- expect: flow.nn.lora: the option `alpha` is a number, not 16
  why(nn.lora, nn.sequential { nn.relu() })  -- expect: flow.nn.lora: the model has no linear layers in it
  local tied = nn.sequential { nn.embedding(3, 2), nn.linear(2, 2), nn.linear(2, 3) }
  tied[3].weight = tied[1].weight
  why(nn.lora, tied)  -- expect: flow.nn.lora: the weight of the linear layer `3` is `1.weight` too, and an adapter would change both as it is merged: name the layers to adapt with `targets`, without this one
  print(#tied:parameters(), #nn.lora(tied, { targets = { "2" } }):parameters())  -- expect: 4	2
  print(#twice:parameters(), twice(input):detach() == before)  -- expect: 2	true
  nn.lora(twice, { targets = { "1" } })
  why(nn.lora, twice)  -- expect: flow.nn.lora: this model has adapters already, one is `first`: add them into the weights with flow.nn.merge_lora(model) first
  print(#nn.merge_lora(twice):parameters(), twice(input):detach() == before)  -- expect: 2	true
end

-- Attention, a block, a language model.
local block = nn.transformer_block(8, 2, { groups = 1, rotary = true })
print(flow.json.encode(block(flow.randn(2, 5, 8)).shape))  -- expect: [2,5,8]
local gpt = flow.models.gpt { vocabulary = 11, context = 6, width = 8, heads = 2, layers = 1 }
local tokens = flow.tensor { { 1, 2, 3, 4, 5, 6 } }
-- Later tokens do not change earlier ones.
local early = flow.no_grad(gpt, tokens)
tokens[1][6] = 9
print(early[{ {}, { 1, 5 } }] == flow.no_grad(gpt, tokens)[{ {}, { 1, 5 } }])  -- expect: true
print(#gpt:generate({ 1 }, 9, { seed = 3, top = 4 }))  -- expect: 9
print((select(2, pcall(gpt.generate, gpt, { 1 }, 9, { top = 0 })):gsub(":%d+:", ":LINE:")))  -- expect: nn.lua:LINE: model:generate: the option `top` is a whole number of 1 or more, not 0
local conv = nn.sequential { nn.conv2d(1, 2, 3, { padding = 1 }), nn.relu(), nn.max_pool2d(2), nn.flatten(), nn.linear(8, 2) }
print(flow.json.encode(conv(flow.randn(3, 1, 4, 4)).shape))  -- expect: [3,2]

-- The parts of a user-defined module, and losses computed by hand.
local Scale = nn.class("Scale")
function Scale:init(n) self.factor = nn.parameter(flow.ones(n)) end
function Scale:forward(v) return nn.identity()(v) * self.factor end
local scale, visited = nn.sequential { Scale(2), Scale(2) }, 0
scale:apply(function() visited = visited + 1 end)
print(visited, #scale:parameters(), scale(flow.ones(2)):sum():item())  -- expect: 3	2	2.0
print(nn.l1_loss(flow.tensor { 1.0, 4.0 }, flow.tensor { 2.0, 2.0 }):item(), nn.mse_loss(flow.tensor { 1.0, 4.0 }, flow.tensor { 2.0, 2.0 }, { reduction = "sum" }):item())  -- expect: 1.5	5.0
-- -log sigmoid(±x), computed with Python's math; the gradient is sigmoid(x) - t, at 0 as well.
local raw = flow.tensor({ 0, 0, 20, -20, 20, 1000, -1000 }, "f64"):requires_grad_()
local targets = flow.tensor({ 0, 1, 1, 0, 0.25, 0, 0 }, "f64")
local losses = nn.bce_with_logits(raw, targets, { reduction = "none" })
losses:sum():backward()
local exact = { math.log(2), math.log(2), 2.061153620314381e-09, 2.061153620314381e-09, 15.000000002061153, 1000, 0 }
local slopes = { 0.5, -0.5, -2.0611536181902037e-09, 2.0611536181902037e-09, 0.7499999979388464, 1, 0 }
for i = 1, #exact do
  assert(math.abs(losses:detach()[i] - exact[i]) <= 1e-14 * exact[i], "loss " .. i)
  assert(math.abs(raw.grad[i] - slopes[i]) <= 1e-12 * math.abs(slopes[i]), "gradient " .. i)
end
print(raw.grad[1], raw.grad[2], nn.bce_with_logits(flow.zeros(2), flow.ones(2)):item())  -- expect: 0.5	-0.5	0.6931471824646
local of_scale = flow.optim.sgd({ { params = scale[1], lr = 1 }, { params = scale[2], lr = 0.1 } })
of_scale:set_lr(0.5)
print(of_scale:lr(), of_scale.groups[2].options.lr)  -- expect: 0.5	0.05
-- The steps of optimizers are rows of the table as well.
local row, moment, square = flow.ones(2), flow.zeros(2), flow.zeros(2)
print(row:adamw_(flow.ones(2), moment, square, { lr = 0.5, weight_decay = 0 })[1], row:sgd_(flow.ones(2), nil, { lr = 0.5 })[1])  -- expect: 0.5	0.0

-- Schedules and clipping.
local rate = flow.optim.cosine { lr = 1, warmup = 10, total = 110, min_lr = 0.1 }
print(fixed(rate(5)), fixed(rate(10)), fixed(rate(60)), fixed(rate(110)), fixed(rate(200)))  -- expect: 0.50000	1.00000	0.55000	0.10000	0.10000
local big = flow.ones({ 4 }, { requires_grad = true })
big.grad = flow.full({ 4 }, 3)
print(flow.optim.clip_grad_norm({ big }, 1), fixed(big.grad:norm()))  -- expect: 6.0	1.00000


-- A gradient with gaps counts by its elements, not by the memory between them; one that repeats is copied.
do
  local whole = flow.full({ 2, 100 }, 1000)
  whole[{ {}, { 1, 1 } }] = flow.tensor { { 3 }, { 4 } }
  local shard, back, one = flow.zeros({ 2, 1 }):requires_grad_(), flow.zeros(2):requires_grad_(), flow.zeros(1000):requires_grad_()
  shard.grad = whole[{ {}, { 1, 1 } }]
  back.grad = flow.tensor { 7.0, 7, 3, 4 }[{ 3, 4 }]:flip(1)
  one.grad = flow.tensor({ 3 }, "f32"):expand(1000)
  print(flow.optim.clip_grad_norm({ shard }, 1), fixed(shard.grad[1][1]), fixed(shard.grad[2][1]), whole[1][2])  -- expect: 5.0	0.60000	0.80000	1000.0
  print(flow.optim.clip_grad_norm({ back }, 100), fixed(flow.optim.clip_grad_norm({ one }, 1)), fixed(one.grad:norm()))  -- expect: 5.0	94.86833	1.00000
  why(flow.clip_grad_norm, { shard }, -1)  -- expect: flow.clip_grad_norm: the limit is a number of 0 or more, not -1
  why(flow.clip_grad_norm, { shard }, 0 / 0)  -- expect: flow.clip_grad_norm: the limit is a number of 0 or more, not NaN
  why(flow.clip_grad_norm, { shard }, -math.huge)  -- expect: flow.clip_grad_norm: the limit is a number of 0 or more, not -inf
end

-- A group with a rate of 0 stays frozen, at any position, also after load and set_lr.
for _, kind in ipairs { "adamw", "sgd" } do
  for _, rates in ipairs { { 0, 0.1 }, { 0.1, 0 } } do
    local function make()
      local a, b = flow.ones(2):requires_grad_(), flow.ones(2):requires_grad_()
      local made = flow.optim[kind]({ { params = { a }, lr = rates[1] }, { params = { b }, lr = rates[2] } }, { weight_decay = 0 })
      return made, function()
        a.grad, b.grad = flow.ones(2), flow.ones(2)
        made:step()
        return (a:detach()[1] == 1 and "-" or "moved") .. "/" .. (b:detach()[1] == 1 and "-" or "moved")
      end
    end
    local first, step = make()
    local before = step()
    local loaded, step_loaded = make()
    loaded:load(first:state())
    local later, step_later = make()
    later:set_lr(0.01)
    local old = first:state()
    old.rates = nil  -- as it was saved before there were rates
    old.lr = rates[1]
    local older, step_older = make()
    older:load(old)
    print(before, step_loaded(), step_later(), step_older(), loaded:lr(), later:lr(), first:state().rates[1], first:state().rates[2])
  end
end
-- expect: -/moved	-/moved	-/moved	-/moved	0.1	0.01	0	0.1
-- expect: moved/-	moved/-	moved/-	moved/-	0.1	0.01	0.1	0
-- expect: -/moved	-/moved	-/moved	-/moved	0.1	0.01	0	0.1
-- expect: moved/-	moved/-	moved/-	moved/-	0.1	0.01	0.1	0
do
  local groups = flow.optim.sgd({ { params = { flow.ones(1):requires_grad_() }, lr = 1 }, { params = { flow.ones(1):requires_grad_() }, lr = 0.1 } })
  groups:set_lr(0.5)
  why(flow.optim.sgd({ flow.ones(1):requires_grad_() }).load, flow.optim.sgd({ flow.ones(1):requires_grad_() }), { steps = 0, momentum = {}, rates = { 1, 2 } })  -- expect: opt:load: the state has the rates of 2 groups, and this optimizer has 1 groups
  print(flow.json.encode(groups:state().rates))  -- expect: [0.5,0.05]
end

-- Buffers stay buffers when a model is frozen and trained again; a frozen model has nothing for an optimizer.
do
  local WithMean = nn.class("WithMean")
  function WithMean:init() self.inner, self.mean = nn.linear(4, 4), flow.zeros(4) end
  function WithMean:forward(v) return self.inner(v - self.mean) end
  local model = WithMean()
  print(model:count(), model.mean.is_parameter, model.inner.weight.is_parameter)  -- expect: 20	false	true
  model:requires_grad_(false)
  print(model:count(), model.inner.weight.is_parameter, model.inner.weight.requires_grad)  -- expect: 0	true	false
  why(flow.optim.adamw, model)  -- expect: flow.optim.adamw got an empty list of parameters: the model has none, or is frozen; model:requires_grad_(true) unfreezes it
  why(flow.optim.sgd, { { params = model } })  -- expect: flow.optim.sgd got an empty list of parameters: the model has none, or is frozen; model:requires_grad_(true) unfreezes it
  for _, make in ipairs { flow.optim.adamw, flow.optim.sgd } do
    why(make, model:parameters())
    why(make, { { params = model:parameters() }, { params = {} } })
    why(make, nn.relu())
  end
  -- expect: flow.optim.adamw got an empty list of parameters: the model has none, or is frozen; model:requires_grad_(true) unfreezes it
  -- expect: flow.optim.adamw got an empty list of parameters: the model has none, or is frozen; model:requires_grad_(true) unfreezes it
  -- expect: flow.optim.adamw got an empty list of parameters: the model has none, or is frozen; model:requires_grad_(true) unfreezes it
  -- expect: flow.optim.sgd got an empty list of parameters: the model has none, or is frozen; model:requires_grad_(true) unfreezes it
  -- expect: flow.optim.sgd got an empty list of parameters: the model has none, or is frozen; model:requires_grad_(true) unfreezes it
  -- expect: flow.optim.sgd got an empty list of parameters: the model has none, or is frozen; model:requires_grad_(true) unfreezes it
  model:to("f64"):to("f32")
  model:requires_grad_(true)
  print(model:count(), model.mean.requires_grad)  -- expect: 20	false
end

-- Adapters of weights with a small type are f32, which optimizers accept; merging rounds once.
do
  local small = nn.sequential { nn.linear(4, 4), nn.linear(4, 2) }:to("bf16")
  nn.lora(small, { rank = 2 })
  local learner = flow.optim.adamw(small, { lr = 0.5 })
  local out = small(flow.ones({ 1, 4 }, "bf16"))
  out:sum():backward()
  learner:step()
  local adapted = small(flow.ones({ 1, 4 }, "bf16")):detach():to("f32")
  local types = small:parameters()[1].dtype
  nn.merge_lora(small)
  local merged = small(flow.ones({ 1, 4 }, "bf16")):detach():to("f32")
  print(types, out.dtype, small[1].weight.dtype, (adapted - merged):abs():amax() < 0.1)  -- expect: f32	bf16	bf16	true
end

why(nn.linear, 3)  -- expect: flow.nn.linear takes sizes, integers of 1 or more: flow.nn.linear(inputs, outputs)
why(nn.linear, 3, 4, { biass = false })  -- expect: flow.nn.linear has no option `biass`: there are bias
-- A parameter is a separate tensor, and exists once; one that requires no gradient stays as it is.
do
  local one, fixed_one = flow.ones({ 1 }, { requires_grad = true }), flow.ones(1)
  why(flow.optim.sgd, { one * 2 })  -- expect: flow.optim.sgd: parameter 1 is computed from other tensors, so it never gets a gradient; pass those, or make it a parameter: flow.nn.parameter(x)
  why(flow.optim.adamw, { one, fixed_one, one })  -- expect: flow.optim.adamw: parameter 3 is parameter 1 again; a step would change it twice
  why(flow.optim.sgd, { { params = { one } }, { params = { fixed_one, one } } })  -- expect: flow.optim.sgd: parameter 3 is parameter 1 again; a step would change it twice
  why(flow.optim.sgd, { one, 2 })  -- expect: flow.optim.sgd: parameter 2: expected a tensor, got a number
  local both = flow.optim.sgd({ one, fixed_one }, { lr = 1 })
  local product = one * fixed_one
  product:sum():backward()
  both:step()
  print(one:detach()[1], fixed_one[1])  -- expect: 0.0	1.0
end

-- Options without an effect are rejected.
why(nn.linear, 2, 2, false)  -- expect: flow.nn.linear takes its options as a table, { bias = … }, not a boolean
why(nn.layer_norm, 2, 1e-5)  -- expect: flow.nn.layer_norm takes its options as a table, { bias = … }, not a number
why(nn.rms_norm, 2, { epsilon = 1 })  -- expect: flow.nn.rms_norm has no option `epsilon`: there are eps
why(nn.embedding, 2, 2, { padding = 1 })  -- expect: flow.nn.embedding takes the number of rows and their width, no more
why(nn.conv2d, 1, 1, 3, 2)  -- expect: flow.nn.conv2d takes its options as a table, { bias = … }, not a number
why(nn.max_pool2d, 2, 2)  -- expect: flow.nn.max_pool2d takes its options as a table, { padding = … }, not a number
why(nn.attention, 4, 2, true)  -- expect: flow.nn.attention takes its options as a table, { bias = … }, not a boolean
why(nn.transformer_block, 4, 2, true)  -- expect: flow.nn.transformer_block takes its options as a table, { activation = … }, not a boolean
why(nn.relu, { inplace = true })  -- expect: flow.nn.relu takes no arguments
why(nn.gelu, "tanh", 1)  -- expect: flow.nn.gelu takes "tanh" or nothing
why(nn.flatten, 2)  -- expect: flow.nn.flatten takes no arguments
why(nn.identity, 2)  -- expect: flow.nn.identity takes no arguments
why(nn.dropout, 0.5, true)  -- expect: flow.nn.dropout takes a probability, no more
why(nn.sequential, nn.sequential { nn.relu() }, nn.relu())  -- expect: flow.nn.sequential takes a list of layers: flow.nn.sequential { flow.nn.linear(2, 3), flow.nn.relu() }
why(nn.lora, nn.sequential { nn.linear(2, 2) }, 8)  -- expect: flow.nn.lora takes its options as a table, { alpha = … }, not a number
why(nn.mse_loss, flow.ones(2), flow.ones(2), "sum")  -- expect: flow.nn.mse_loss takes its options as a table, { reduction = … }, not a string
why(nn.l1_loss, flow.ones(2), flow.ones(2), "sum")  -- expect: flow.nn.l1_loss takes its options as a table, { reduction = … }, not a string
why(nn.bce_with_logits, flow.ones(2), flow.ones(2), "sum")  -- expect: flow.nn.bce_with_logits takes its options as a table, { reduction = … }, not a string
why(nn.nll_loss, flow.zeros(1, 2), flow.tensor { 1 }, "sum")  -- expect: flow.nn.nll_loss takes its options as a table, { reduction = … }, not a string
why(nn.cross_entropy, flow.zeros(1, 2), flow.tensor { 1 }, "sum")  -- expect: the options of x:cross_entropy are a table, not a string
why(nn.conv2d, 4, 6, 3, { groups = 0 })  -- expect: flow.nn.conv2d: the option `groups` is a whole number of 1 or more, not 0
why(nn.conv2d, 4, 6, 3, { groups = 4 })  -- expect: flow.nn.conv2d: 4 groups do not divide both 4 inputs and 6 outputs evenly
why(flow.models.gpt, 65)  -- expect: flow.models.gpt takes its options as a table, flow.models.gpt { vocabulary = 65 }, not a number
for _, options in ipairs { { temprature = 0 }, { seed = 1.5 }, { temperature = -1 } } do
  print((select(2, pcall(gpt.generate, gpt, { 1 }, 2, options)):gsub(":%d+:", ":LINE:")))
end  -- expect: nn.lua:LINE: model:generate has no option `temprature`: there are cache, dtype, seed, temperature and top
-- expect: nn.lua:LINE: model:generate: the option `seed` is a whole number, not 1.5
-- expect: nn.lua:LINE: model:generate: the option `temperature` is a number of 0 or more, not -1
why(gpt.generate, gpt, { 1 }, 2, 0.8)  -- expect: model:generate takes its options as a table, { temperature = … }, not a number
why(gpt.generate, gpt, { 1 }, 2.5)  -- expect: model:generate takes a number of tokens, a whole number, not 2.5
why(flow.optim.cosine, { lr = 1, total = 10, minlr = 0.1 })  -- expect: flow.optim.cosine has no option `minlr`: there are lr, min_lr, total and warmup
why(flow.optim.linear, { lr = 1, steps = 10 })  -- expect: flow.optim.linear has no option `steps`: there are lr, min_lr, total and warmup
why(flow.optim.cosine, { lr = 1 })  -- expect: flow.optim.cosine takes { lr =, total =, warmup =, min_lr = } with total greater than warmup
why(flow.optim.cosine, { lr = "1", total = 10 })  -- expect: flow.optim.cosine: the option `lr` is a number of 0 or more, not 1
why(flow.optim.linear, 1)  -- expect: flow.optim.linear takes a table, flow.optim.linear { lr = 3e-4, total = 1000 }, not a number
why(flow.optim.adamw, layer, 0.1)  -- expect: flow.optim.adamw takes its options as a table, { lr = … }, not a number
why(layer.forward, layer, flow.ones(1, 3))  -- expect: this linear layer takes a tensor [..., 2], not [1, 3]
why(nn.sequential, {})  -- expect: flow.nn.sequential takes a list of layers: flow.nn.sequential { flow.nn.linear(2, 3), flow.nn.relu() }
why(nn.sequential, { nn.relu })  -- expect: flow.nn.sequential: item 1 is not a layer; did you forget to call it, as in flow.nn.relu()?
why(layer.load, layer, { weight = flow.zeros(2, 3), bias = flow.zeros(2) })  -- expect: model:load: parameter `weight` has shape [2, 2], the state has [2, 3]
why(nn.cross_entropy, 1)  -- expect: flow.nn.cross_entropy takes logits [n, classes] and labels [n], not a number
why(nn.cross_entropy, flow.zeros(1, 2), flow.tensor { 0 })  -- expect: label 0 of row 1 is outside 1..2: a label is the number of its column; if yours begin with 0, pass labels + 1
why(nn.cross_entropy, flow.zeros(1, 2), flow.tensor { 1.0 })  -- expect: cross_entropy takes logits [n, classes] and 1 labels, one integer per row, not tensor f32 [1, 2] and tensor f32 [1]
why(nn.nll_loss, flow.zeros(1, 2), flow.tensor { 1 }, { ignore = 1 })  -- expect: flow.nn.nll_loss has no option `ignore`: there are reduction
why(nn.mse_loss, flow.ones(2), flow.ones(2), { reduction = "max" })  -- expect: a reduction is "mean", "sum" or "none", not "max"
why(nn.transformer_block, 4, 2, { activation = "tanh" })  -- expect: flow.nn.transformer_block: activation is one of gelu_tanh, gelu, relu, silu, not tanh
why(function() return flow.zeros(1, 3, 12):self_attention(2, { groups = 1.5 }) end)  -- expect: the option `groups` is a whole number, not 1.5
print(flow.ones(1, 1, 2, 4):attention(flow.ones(1, 1, 2, 4), flow.ones(1, 1, 2, 4), { scale = -1 }):sum())  -- expect: 8.0
why(nn.mse_loss, flow.ones(2), flow.ones(3))  -- expect: flow.nn.mse_loss: [2] and [3] are of one shape
why(flow.optim.adamw, {})  -- expect: flow.optim.adamw got an empty list of parameters: the model has none, or is frozen; model:requires_grad_(true) unfreezes it
why(flow.optim.adamw, 3)  -- expect: flow.optim.adamw takes a model and options: flow.optim.adamw(model, { lr = 1e-3 })
why(flow.optim.adamw, layer, { rate = 1 })  -- expect: flow.optim.adamw has no option `rate`: there are beta1, beta2, eps, lr and weight_decay
why(flow.optim.adamw, layer, { lr = -1 })  -- expect: flow.optim.adamw: the option `lr` is a number of 0 or more, not -1
why(flow.optim.adamw, layer, { beta2 = 1 })  -- expect: flow.optim.adamw: the option `beta2` is below 1, not 1
why(flow.optim.adamw, layer, { lr = math.huge })  -- expect: flow.optim.adamw: the option `lr` is a number of 0 or more, not inf
-- An error deep in the library is reported at the script's line.
local told = select(2, pcall(function() local y = nn.sequential { nn.linear(3, 4), nn.linear(5, 6) }(flow.zeros(2, 3)) return y end))
print((told:gsub(":%d+:", ":LINE:")))  -- expect: nn.lua:LINE: this linear layer takes a tensor [..., 5], not [2, 4]
-- A sum within a checkpoint is one tensor, as it is without.
local leaf = flow.ones({ 3 }, { requires_grad = true })
local summed = flow.checkpoint(function(x) return (x * 2):sum() end, leaf)
summed:backward()
print(summed:item(), leaf.grad[1])  -- expect: 6.0	2.0
why(flow.checkpoint, function(x) return x, x end, leaf)  -- expect: the function of flow.checkpoint returns one tensor, not 2 values
local kept = nn.linear(2, 2)
local weight = kept.weight
print(kept:to("cpu").weight == weight, rawequal(kept:to("f32").weight, weight), kept:to("f64").weight.dtype)  -- expect: true	true	f64
local turned = nn.linear(2, 2)
turned.weight = flow.ones(2, 2):t():requires_grad_()
turned(flow.ones(1, 2)):sum():backward()
why(function() flow.optim.sgd(turned):step() end)  -- expect: sgd changes dense weights, and tensor f32 [2, 2] is a view of another tensor or transposed: make the parameter from x:contiguous()
why(opt.load, opt, { steps = 1, mean = { flow.zeros(3) }, square = { flow.zeros(2) } })  -- expect: opt:load takes the result of opt:state() of an optimizer of the same model
nn.cross_entropy(flow.zeros(1, 2), flow.tensor { 3 })  -- expect error: label 3 of row 1 is outside 1..2
