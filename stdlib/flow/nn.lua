-- Layers and models: forward, backward and state, on f32 tensors of the CPU. Names and numerics follow PyTorch.
--
--   local model = flow.nn.sequential { flow.nn.linear(64, 128), flow.nn.relu(), flow.nn.linear(128, 10) }
--   local loss, grad = flow.nn.cross_entropy(model:forward(x), labels)
--   model:zero_grad(); model:backward(grad)
local flow = require "flow"

local nn = {}

-- What every layer has; one without parameters has nothing more.
local Layer = {}
Layer.__index = Layer

function Layer:parameters() return {} end
function Layer:gradients() return {} end
function Layer:zero_grad()
  for _, grad in ipairs(self:gradients()) do grad:fill_(0) end
end
-- The parameters as plain tensors, in order: what crosses an edge or goes into a checkpoint.
function Layer:state()
  local out = {}
  for i, parameter in ipairs(self:parameters()) do out[i] = parameter:clone() end
  return out
end
function Layer:load(state)
  local parameters = self:parameters()
  if type(state) ~= "table" or #state ~= #parameters then
    error("model:load takes a state of " .. #parameters .. " tensors, as model:state() gives", 2)
  end
  for i, parameter in ipairs(parameters) do
    parameter:fill_(0)
    parameter:add_(state[i])
  end
  return self
end

local function layer(methods)
  methods.__index = methods
  return setmetatable(methods, Layer)
end

-- y = x * W^T + b, with x [n, inputs] and W [outputs, inputs].
local Linear = layer {}

-- Weights and bias are uniform in ±1/sqrt(inputs), as torch.nn.Linear makes them.
function nn.linear(inputs, outputs)
  if math.type(inputs) ~= "integer" or math.type(outputs) ~= "integer" or inputs < 1 or outputs < 1 then
    error("flow.nn.linear takes two sizes: flow.nn.linear(inputs, outputs)", 2)
  end
  local bound = 1 / math.sqrt(inputs)
  local weights, bias = {}, {}
  for i = 1, outputs do
    local row = {}
    for j = 1, inputs do row[j] = (2 * math.random() - 1) * bound end
    weights[i] = row
    bias[i] = (2 * math.random() - 1) * bound
  end
  return setmetatable({
    weight = flow.tensor(weights), bias = flow.tensor(bias),
    weight_grad = flow.zeros(outputs, inputs), bias_grad = flow.zeros(outputs),
  }, Linear)
end

function Linear:forward(x)
  self.input = x
  return x:matmul(self.weight:t()):add_bias_(self.bias)
end
function Linear:backward(grad)
  self.weight_grad:add_(grad:t():matmul(self.input))
  self.bias_grad:add_sum_of_rows_(grad)
  return grad:matmul(self.weight)
end
function Linear:parameters() return { self.weight, self.bias } end
function Linear:gradients() return { self.weight_grad, self.bias_grad } end

-- max(x, 0)
local Relu = layer {}
function nn.relu() return setmetatable({}, Relu) end
function Relu:forward(x)
  self.input = x
  return x:relu()
end
function Relu:backward(grad) return self.input:relu_backward(grad) end

local Tanh = layer {}
function nn.tanh() return setmetatable({}, Tanh) end
function Tanh:forward(x)
  self.output = x:tanh()
  return self.output
end
function Tanh:backward(grad) return grad * (1 - self.output * self.output) end

local Sigmoid = layer {}
function nn.sigmoid() return setmetatable({}, Sigmoid) end
function Sigmoid:forward(x)
  self.output = x:sigmoid()
  return self.output
end
function Sigmoid:backward(grad) return grad * self.output * (1 - self.output) end

-- Layers one after the other.
local Sequential = layer {}
function nn.sequential(layers)
  if type(layers) ~= "table" or #layers == 0 then
    error("flow.nn.sequential takes a list of layers: flow.nn.sequential { flow.nn.linear(2, 3), flow.nn.relu() }", 2)
  end
  return setmetatable({ layers = layers }, Sequential)
end
function Sequential:forward(x)
  for _, each in ipairs(self.layers) do x = each:forward(x) end
  return x
end
function Sequential:backward(grad)
  for i = #self.layers, 1, -1 do grad = self.layers[i]:backward(grad) end
  return grad
end
local function collected(layers, method)
  local out = {}
  for _, each in ipairs(layers) do
    for _, tensor in ipairs(each[method](each)) do out[#out + 1] = tensor end
  end
  return out
end
function Sequential:parameters() return collected(self.layers, "parameters") end
function Sequential:gradients() return collected(self.layers, "gradients") end

-- Mean loss of rows of logits [n, classes] against labels 1..classes [n], and its gradient.
function nn.cross_entropy(logits, labels) return logits:cross_entropy(labels) end

return nn
