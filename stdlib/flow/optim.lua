-- Optimizers: they change a model's parameters in place by its gradients.
local flow = require "flow"

local optim = {}

local AdamW = {}
AdamW.__index = AdamW

local known = { lr = true, beta1 = true, beta2 = true, eps = true, weight_decay = true }

-- AdamW (Loshchilov and Hutter, 2019) with torch.optim.AdamW's defaults:
-- lr 1e-3, beta1 0.9, beta2 0.999, eps 1e-8, weight_decay 1e-2.
function optim.adamw(model, options)
  options = options or {}
  for name in pairs(options) do
    if not known[name] then
      error("flow.optim.adamw has no option `" .. tostring(name) .. "`: there are lr, beta1, beta2, eps and weight_decay", 2)
    end
  end
  local self = setmetatable({ model = model, steps = 0, mean = {}, square = {}, options = {
    lr = options.lr or 1e-3, beta1 = options.beta1 or 0.9, beta2 = options.beta2 or 0.999,
    eps = options.eps or 1e-8, weight_decay = options.weight_decay or 1e-2,
  } }, AdamW)
  for i, parameter in ipairs(model:parameters()) do
    self.mean[i], self.square[i] = parameter * 0, parameter * 0
  end
  return self
end

function AdamW:step()
  self.steps = self.steps + 1
  local options = self.options
  options.step = self.steps
  local gradients = self.model:gradients()
  for i, parameter in ipairs(self.model:parameters()) do
    parameter:adamw_(gradients[i], self.mean[i], self.square[i], options)
  end
end

function AdamW:zero_grad() self.model:zero_grad() end

-- What a checkpoint needs to go on with the same steps.
function AdamW:state()
  local mean, square = {}, {}
  for i = 1, #self.mean do mean[i], square[i] = self.mean[i]:clone(), self.square[i]:clone() end
  return { steps = self.steps, mean = mean, square = square }
end

function AdamW:load(state)
  self.steps = state.steps
  for i = 1, #self.mean do
    self.mean[i], self.square[i] = state.mean[i]:clone(), state.square[i]:clone()
  end
  return self
end

return optim
