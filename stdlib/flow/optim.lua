-- Optimizers: they change a model's parameters in place by its gradients.
--
--   local opt = flow.optim.adamw(model, { lr = 1e-3 })
--   model:zero_grad(); model:backward(grad); opt:step()
local flow = require "flow"

local optim = {}

local AdamW = {}
AdamW.__index = AdamW

local defaults = { lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 1e-2 }

local function read_options(given)
  local options = {}
  for name, value in pairs(defaults) do options[name] = value end
  for name, value in pairs(given or {}) do
    if not defaults[name] then
      error("flow.optim.adamw has no option `" .. tostring(name)
        .. "`: there are lr, beta1, beta2, eps and weight_decay", 3)
    end
    if type(value) ~= "number" or value < 0 then
      error("flow.optim.adamw: the option `" .. name .. "` is a number of 0 or more", 3)
    end
    options[name] = value
  end
  return options
end

local function zeros_like(tensors)
  local out = {}
  for i, tensor in ipairs(tensors) do out[i] = flow.zeros(tensor.shape) end
  return out
end

local function clones(tensors)
  local out = {}
  for i, tensor in ipairs(tensors) do out[i] = tensor:clone() end
  return out
end

local function fits(given, tensors)
  if type(given) ~= "table" or #given ~= #tensors then return false end
  for i, tensor in ipairs(tensors) do
    if not flow.is_tensor(given[i]) or table.concat(given[i].shape, ",") ~= table.concat(tensor.shape, ",") then
      return false
    end
  end
  return true
end

-- AdamW (Loshchilov and Hutter, 2019) with the defaults of torch.optim.AdamW.
function optim.adamw(model, options)
  if type(model) ~= "table" or not model.parameters then
    error("flow.optim.adamw takes a model and options: flow.optim.adamw(model, { lr = 1e-3 })", 2)
  end
  local parameters = model:parameters()
  return setmetatable({
    model = model, options = read_options(options), steps = 0,
    mean = zeros_like(parameters), square = zeros_like(parameters),
  }, AdamW)
end

function AdamW:step()
  self.steps = self.steps + 1
  self.options.step = self.steps
  local gradients = self.model:gradients()
  for i, parameter in ipairs(self.model:parameters()) do
    parameter:adamw_(gradients[i], self.mean[i], self.square[i], self.options)
  end
end

function AdamW:zero_grad() self.model:zero_grad() end

-- What a checkpoint needs to go on with the same steps.
function AdamW:state()
  return { steps = self.steps, mean = clones(self.mean), square = clones(self.square) }
end

function AdamW:load(state)
  if type(state) ~= "table" or math.type(state.steps) ~= "integer"
    or not fits(state.mean, self.mean) or not fits(state.square, self.square) then
    error("opt:load takes what opt:state() of an optimizer of the same model gave", 2)
  end
  self.steps, self.mean, self.square = state.steps, clones(state.mean), clones(state.square)
  return self
end

return optim
