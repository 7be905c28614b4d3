local function why(f, ...)
  local ok, message = pcall(f, ...)
  print(ok and "no error" or (tostring(message):gsub("^%w+%.lua:%d+: ", "")))
end

local nn = flow.nn
local function fixed(x) return ("%.5f"):format(x) end
local function near(x, y, tolerance) return math.abs(x - y) <= tolerance * math.max(1, math.abs(y)) end

-- -log softmax, and (softmax - onehot) / n, worked out in double precision with Python's math.
local loss, grad = nn.cross_entropy(flow.tensor({ { 1, 2, 3 }, { 1, 1, 1 } }, "f32"), flow.tensor { 3, 1 })
print(fixed(loss))  -- expect: 0.75311
print(fixed(grad[1][1]), fixed(grad[1][2]), fixed(grad[1][3]))  -- expect: 0.04502	0.12236	-0.16738
print(fixed(grad[2][1]), fixed(grad[2][2]))  -- expect: -0.33333	0.16667
loss = nn.cross_entropy(flow.tensor({ { 1000, -1000 } }, "f32"), flow.tensor { 2 })
print(loss)  -- expect: 2000.0

-- Algorithm 2 of Loshchilov and Hutter (2019), worked out in double precision with Python:
-- lr 0.1, weight decay 0.01, gradients 0.5, -1, 0.25 of two weights that begin as 1 and -2.
local weight, gradient = flow.tensor({ 1, -2 }, "f32"), flow.zeros(2)
local one = { parameters = function() return { weight } end, gradients = function() return { gradient } end }
local opt = flow.optim.adamw(one, { lr = 0.1, weight_decay = 0.01 })
for _, g in ipairs { 0.5, -1, 0.25 } do
  gradient:fill_(g)
  opt:step()
  print(fixed(weight[1]), fixed(weight[2]))
end  -- expect: 0.89900	-2.09800
-- expect: 0.93471	-2.05929
-- expect: 0.94745	-2.04356

-- The gradients of every layer against finite differences.
local model = nn.sequential { nn.linear(3, 4), nn.tanh(), nn.linear(4, 4), nn.sigmoid(), nn.linear(4, 5), nn.relu(), nn.linear(5, 2) }
local x, labels = flow.randn({ 6, 3 }, { seed = 3 }), flow.tensor { 1, 2, 1, 2, 2, 1 }
model:zero_grad()
local _, out_grad = nn.cross_entropy(model:forward(x), labels)
local input_grad = model:backward(out_grad)
local function loss_at(tensor, i, delta)
  local flat = tensor:reshape(-1)
  local before = flat[i]
  flat[i] = before + delta
  local at = nn.cross_entropy(model:forward(x), labels)
  flat[i] = before
  return at
end
local checked, wrong = 0, 0
local function compare(tensor, analytic)
  for i = 1, tensor:count() do
    local step = 0.01
    local numeric = (loss_at(tensor, i, step) - loss_at(tensor, i, -step)) / (2 * step)
    checked = checked + 1
    if not near(analytic:reshape(-1)[i], numeric, 2e-3) then wrong = wrong + 1 end
  end
end
local gradients = model:gradients()
for i, parameter in ipairs(model:parameters()) do compare(parameter, gradients[i]:clone()) end
compare(x, input_grad)
print(checked, wrong)  -- expect: 91	0

-- Gradients add up until zero_grad; state and load carry a model and its optimizer on.
local layer = nn.linear(2, 2)
local function pass() layer:forward(flow.ones(1, 2)) layer:backward(flow.ones(1, 2)) end
pass()
pass()
print(layer:gradients()[2][1])  -- expect: 2.0
layer:zero_grad()
print(layer:gradients()[2][1])  -- expect: 0.0
local function train(m, o, steps)
  for _ = 1, steps do
    m:zero_grad()
    local _, g = nn.cross_entropy(m:forward(x), labels)
    m:backward(g)
    o:step()
  end
end
local a, b = nn.sequential { nn.linear(3, 2) }, nn.sequential { nn.linear(3, 2) }
local of_a, of_b = flow.optim.adamw(a), flow.optim.adamw(b)
train(a, of_a, 3)
b:load(a:state())
of_b:load(of_a:state())
train(a, of_a, 2)
train(b, of_b, 2)
print(a:state()[1] == b:state()[1], a:state()[2] == b:state()[2])  -- expect: true	true

why(nn.linear, 3)  -- expect: flow.nn.linear takes two sizes, integers of 1 or more: flow.nn.linear(inputs, outputs)
why(layer.forward, layer, flow.ones(1, 3))  -- expect: this linear layer takes a tensor [n, 2], not [1, 3]
why(nn.sequential, {})  -- expect: flow.nn.sequential takes a list of layers: flow.nn.sequential { flow.nn.linear(2, 3), flow.nn.relu() }
why(nn.sequential, { nn.relu })  -- expect: flow.nn.sequential: item 1 is no layer; did you forget to call it, as in flow.nn.relu()?
why(nn.relu().backward, nn.relu(), x)  -- expect: Relu:backward needs what forward kept: call model:forward(x) first
why(layer.load, layer, {})  -- expect: model:load takes a state of 2 tensors, as model:state() of the same layers gives, not one of 0
why(layer.load, layer, { flow.zeros(2, 3), flow.zeros(2) })  -- expect: model:load: parameter 1 has shape [2, 2], the state has [2, 3]
why(nn.cross_entropy, 1)  -- expect: flow.nn.cross_entropy takes logits [n, classes] and labels [n], not a number
why(nn.cross_entropy, flow.zeros(1, 2), flow.tensor { 0 })  -- expect: label 0 of row 1 is outside 1..2: a label is the number of its column; if yours begin with 0, pass labels + 1
why(nn.cross_entropy, flow.zeros(1, 2), flow.tensor { 1.0 })  -- expect: the labels of tensor f32 [1, 2] are 1 integers, one a row, not tensor f32 [1]
why(flow.optim.adamw, {})  -- expect: flow.optim.adamw takes a model and options: flow.optim.adamw(model, { lr = 1e-3 })
why(flow.optim.adamw, layer, { rate = 1 })  -- expect: flow.optim.adamw has no option `rate`: there are lr, beta1, beta2, eps and weight_decay
why(flow.optim.adamw, layer, { lr = -1 })  -- expect: flow.optim.adamw: the option `lr` is a number of 0 or more
why(opt.load, opt, { steps = 1, mean = { flow.zeros(3) }, square = { flow.zeros(2) } })  -- expect: opt:load takes what opt:state() of an optimizer of the same model gave
nn.cross_entropy(flow.zeros(1, 2), flow.tensor { 3 })  -- expect error: label 3 of row 1 is outside 1..2
