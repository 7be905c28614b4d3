-- Layers and models: forward, backward and state, on f32 tensors of the CPU. Names and numerics follow PyTorch.
--
--   local model = flow.nn.sequential { flow.nn.linear(64, 128), flow.nn.relu(), flow.nn.linear(128, 10) }
--   local loss, grad = flow.nn.cross_entropy(model:forward(x), labels)
--   model:zero_grad(); model:backward(grad)
local flow = require "flow"

local nn = {}

-- ---- what every layer has; one without parameters has nothing more

local Layer = {}
Layer.__index = Layer

function Layer:parameters() return {} end
function Layer:gradients() return {} end

function Layer:zero_grad()
  for _, grad in ipairs(self:gradients()) do grad:fill_(0) end
end

-- Copies of the parameters, in order: what crosses an edge or goes into a checkpoint.
function Layer:state()
  local out = {}
  for i, parameter in ipairs(self:parameters()) do out[i] = parameter:clone() end
  return out
end

local function shape_text(x) return "[" .. table.concat(x.shape, ", ") .. "]" end

function Layer:load(state)
  local parameters = self:parameters()
  if type(state) ~= "table" or #state ~= #parameters then
    error("model:load takes a state of " .. #parameters .. " tensors, as model:state() of the same layers gives, not "
      .. (type(state) == "table" and "one of " .. #state or "a " .. type(state)), 2)
  end
  for i, parameter in ipairs(parameters) do
    local given = flow.is_tensor(state[i]) and shape_text(state[i]) or "a " .. type(state[i])
    if given ~= shape_text(parameter) then
      error("model:load: parameter " .. i .. " has shape " .. shape_text(parameter) .. ", the state has " .. given, 2)
    end
  end
  for i, parameter in ipairs(parameters) do parameter[{}] = state[i] end
  return self
end

local function new_class()
  local class = {}
  class.__index = class
  return setmetatable(class, Layer)
end

-- backward before forward, and the like
local function need(value, method)
  if value == nil then error(method .. " needs what forward kept: call model:forward(x) first", 3) end
  return value
end

-- ---- y = x * W^T + b, with x [n, inputs] and W [outputs, inputs]

local Linear = new_class()

-- Weights and bias are uniform in ±1/sqrt(inputs), as torch.nn.Linear makes them.
function nn.linear(inputs, outputs)
  if math.type(inputs) ~= "integer" or math.type(outputs) ~= "integer" or inputs < 1 or outputs < 1 then
    error("flow.nn.linear takes two sizes, integers of 1 or more: flow.nn.linear(inputs, outputs)", 2)
  end
  local bound = 1 / math.sqrt(inputs)
  local function uniform(...) return (flow.rand(...) * 2 - 1) * bound end
  return setmetatable({
    weight = uniform(outputs, inputs), bias = uniform(outputs),
    weight_grad = flow.zeros(outputs, inputs), bias_grad = flow.zeros(outputs),
  }, Linear)
end

function Linear:forward(x)
  local inputs = self.weight:size(2)
  if not flow.is_tensor(x) or x:dims() ~= 2 or x:size(2) ~= inputs then
    error("this linear layer takes a tensor [n, " .. inputs .. "], not "
      .. (flow.is_tensor(x) and shape_text(x) or "a " .. type(x)), 2)
  end
  self.input = x
  return x:to("f32"):matmul(self.weight:t()):add_bias_(self.bias)
end

function Linear:backward(grad)
  self.weight_grad:add_(grad:t():matmul(need(self.input, "Linear:backward"):to("f32")))
  self.bias_grad:add_sum_of_rows_(grad)
  return grad:matmul(self.weight)
end

function Linear:parameters() return { self.weight, self.bias } end
function Linear:gradients() return { self.weight_grad, self.bias_grad } end

-- ---- functions of one number

local Relu = new_class()
function nn.relu() return setmetatable({}, Relu) end
function Relu:forward(x)
  self.input = x
  return x:relu()
end
function Relu:backward(grad) return need(self.input, "Relu:backward"):relu_backward(grad) end

local Tanh = new_class()
function nn.tanh() return setmetatable({}, Tanh) end
function Tanh:forward(x)
  self.output = x:tanh()
  return self.output
end
function Tanh:backward(grad)
  local y = need(self.output, "Tanh:backward")
  return grad * (1 - y * y)
end

local Sigmoid = new_class()
function nn.sigmoid() return setmetatable({}, Sigmoid) end
function Sigmoid:forward(x)
  self.output = x:sigmoid()
  return self.output
end
function Sigmoid:backward(grad)
  local y = need(self.output, "Sigmoid:backward")
  return grad * y * (1 - y)
end

-- ---- layers one after the other

local Sequential = new_class()

function nn.sequential(layers)
  if type(layers) ~= "table" or #layers == 0 then
    error("flow.nn.sequential takes a list of layers: flow.nn.sequential { flow.nn.linear(2, 3), flow.nn.relu() }", 2)
  end
  for i, each in ipairs(layers) do
    if type(each) ~= "table" or not each.forward or not each.backward then
      error("flow.nn.sequential: item " .. i .. " is no layer; did you forget to call it, as in flow.nn.relu()?", 2)
    end
  end
  return setmetatable({ layers = layers }, Sequential)
end

function Sequential:forward(x)
  for _, each in ipairs(self.layers) do x = each:forward(x) end
  return x
end

-- Adds to the gradients of all layers and returns the gradient with regard to the input.
function Sequential:backward(grad)
  for i = #self.layers, 1, -1 do grad = self.layers[i]:backward(grad) end
  return grad
end

local function collect(layers, method)
  local out = {}
  for _, each in ipairs(layers) do
    for _, tensor in ipairs(each[method](each)) do out[#out + 1] = tensor end
  end
  return out
end

function Sequential:parameters() return collect(self.layers, "parameters") end
function Sequential:gradients() return collect(self.layers, "gradients") end

-- ---- losses

-- Mean loss of rows of logits [n, classes] against labels [n] of 1..classes, and its gradient.
function nn.cross_entropy(logits, labels)
  if not flow.is_tensor(logits) then
    error("flow.nn.cross_entropy takes logits [n, classes] and labels [n], not a " .. type(logits), 2)
  end
  return logits:cross_entropy(labels)
end

return nn
