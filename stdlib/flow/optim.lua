-- Optimizers change parameters in place by their gradients; schedules set their learning rate. Names, defaults and
-- numerics are those of torch.optim.
--
--   local opt = flow.optim.adamw(model, { lr = 1e-3 })
--   opt:zero_grad(); loss:backward(); opt:step()
local flow = require "flow"

local optim = {}

---- shared by the optimizers

local Optimizer = {}

local function check_number(where, name, value, level)
  if type(value) ~= "number" or not (value >= 0 and value < math.huge) then
    error(where .. ": the option `" .. name .. "` is a number of 0 or more, not " .. tostring(value), level or 3)
  end
end

local function check_names(where, given, known, level)
  if given ~= nil and type(given) ~= "table" then
    error(where .. " takes its options as a table, { lr = … }, not a " .. type(given), level + 1)
  end
  for name in pairs(given or {}) do
    if known[name] == nil and name ~= "params" then
      local names = {}
      for each in pairs(known) do names[#names + 1] = each end
      error(where .. " has no option `" .. tostring(name) .. "`: there are " .. table.concat(names, ", ", 1, #names - 1)
        .. " and " .. names[#names], level + 1)
    end
  end
end

local function read_options(where, given, defaults)
  check_names(where, given, defaults, 4)
  local options = {}
  for name, value in pairs(defaults) do options[name] = value end
  for name, value in pairs(given or {}) do
    if name ~= "params" then
      if type(defaults[name]) == "boolean" then
        value = value and true or false
      else
        check_number(where, name, value, 5)
        if name:find("^beta") and value >= 1 then
          error(where .. ": the option `" .. name .. "` is below 1, not " .. tostring(value), 4)
        end
      end
      options[name] = value
    end
  end
  return options
end

-- A step changes a parameter in place, once: computed tensors and duplicates are rejected.
local function check_parameters(where, groups)
  local at, known = 0, {}
  for _, group in ipairs(groups) do
    for _, parameter in ipairs(group.parameters) do
      at = at + 1
      if not flow.is_tensor(parameter) then
        error(where .. ": parameter " .. at .. ": expected a tensor, got a " .. type(parameter), 4)
      end
      if not parameter.is_leaf then
        error(where .. ": parameter " .. at .. " is computed from other tensors, so it never gets a gradient; pass "
          .. "those, or make it a parameter: flow.nn.parameter(x)", 4)
      end
      if known[parameter] then
        error(where .. ": parameter " .. at .. " is parameter " .. known[parameter] .. " again; a step would change it "
          .. "twice", 4)
      end
      known[parameter] = at
    end
  end
  return groups
end

-- Finds the group whose rate opt:lr() returns, the first with a rate above 0, and the ratio of each group's rate to it.
-- A rate of 0 is a ratio of 0, so such a group stays frozen.
local function share_rates(groups)
  groups.leader = groups[1]
  for _, group in ipairs(groups) do
    if group.options.lr ~= 0 then
      groups.leader = group
      break
    end
  end
  local rate = groups.leader.options.lr
  for _, group in ipairs(groups) do group.share = rate == 0 and 1 or group.options.lr / rate end
end

local function check_not_empty(where, groups)
  for _, group in ipairs(groups) do
    if #group.parameters > 0 then return end
  end
  error(where .. " got an empty list of parameters: the model has none, or is frozen; model:requires_grad_(true) "
    .. "unfreezes it", 4)
end

-- A model, a list of tensors, or a list of groups { params = …, lr = …, … }.
local function read_groups(where, given, options, defaults)
  local base = read_options(where, options, defaults)
  local function parameters_of(value)
    if type(value) == "table" and value.parameters then return value:parameters() end
    if type(value) == "table" and flow.is_tensor(value[1]) then return value end
    if type(value) == "table" and #value == 0 and next(value) == nil then return {} end
    error(where .. " takes a model and options: " .. where .. "(model, { lr = 1e-3 })", 4)
  end
  local is_groups = type(given) == "table" and not given.parameters and type(given[1]) == "table" and given[1].params
  local groups = {}
  if not is_groups then
    groups[1] = { parameters = parameters_of(given), options = base }
  else
    for i, group in ipairs(given) do
      groups[i] = { parameters = parameters_of(group.params), options = read_options(where, group, base) }
    end
  end
  share_rates(groups)
  -- A rank of flow.optim.sharded may own no part of any parameter.
  if not (is_groups and given.is_share) then check_not_empty(where, groups) end
  return check_parameters(where, groups)
end

local function each_parameter(self, visit)
  local at = 0
  for _, group in ipairs(self.groups) do
    for _, parameter in ipairs(group.parameters) do
      at = at + 1
      visit(at, parameter, group)
    end
  end
end

function Optimizer:zero_grad()
  each_parameter(self, function(_, parameter) parameter.grad = nil end)
end

-- Sets the rate of all groups in proportion to the first one with a rate above 0; a group with a rate of 0 keeps 0.
function Optimizer:set_lr(lr)
  check_number("opt:set_lr", "lr", lr)
  if flow.is_capturing() then
    error("opt:set_lr in the function of flow.graph would set the rate once: call it before each call of the graph", 2)
  end
  for _, group in ipairs(self.groups) do group.options.lr = lr * group.share end
end

function Optimizer:lr() return self.groups.leader.options.lr end

local function rates_of(self)
  local out = {}
  for i, group in ipairs(self.groups) do out[i] = group.options.lr end
  return out
end

-- Loads the rates of opt:state(). A state of an older version has only the rate of the first group, which does not
-- determine the others if it is 0.
local function load_rates(self, state)
  if state.rates then
    if #state.rates ~= #self.groups then
      error("opt:load: the state has the rates of " .. #state.rates .. " groups, and this optimizer has "
        .. #self.groups .. " groups", 3)
    end
    for i, group in ipairs(self.groups) do group.options.lr = state.rates[i] end
  elseif state.lr and self.groups.leader == self.groups[1] then
    self:set_lr(state.lr)
  end
end

local function no_counts(self)
  local out = {}
  each_parameter(self, function(i) out[i] = 0 end)
  return out
end

-- Calls update(i, parameter, grad, group) for each parameter with a gradient; its step counts are in
-- group.options.step.
local function each_gradient(self, scale, update)
  local any, some = false, false
  each_parameter(self, function(i, parameter, group)
    local grad = parameter.grad
    any = true
    if grad then
      some = true
      self.counts[i] = self.counts[i] + 1
      group.options.step, group.options.grad_scale = self.counts[i], scale or 1
      update(i, parameter, grad, group)
    end
  end)
  if any and not some then
    error("opt:step: no parameter has a gradient: call loss:backward() before it; after model:to(…) make a new "
      .. "optimizer, because the model has new tensors then", 3)
  end
  self.steps = self.steps + 1
end

local function zeros_like(self)
  local out = {}
  each_parameter(self, function(i, parameter) out[i] = flow.zeros_like(parameter:detach()) end)
  return out
end

local function clones(tensors)
  local out = {}
  for i, tensor in ipairs(tensors) do out[i] = tensor:clone() end
  return out
end

-- In place, as a graph of flow.graph uses the optimizer's own tensors. A checkpoint is written from the CPU.
local function copy_all(from, to)
  for i, tensor in ipairs(from) do to[i]:copy_(tensor:to(to[i].device)) end
end

local function check_fit(given, tensors)
  local fits = type(given) == "table" and #given == #tensors
  for i, tensor in ipairs(tensors) do
    fits = fits and flow.is_tensor(given[i])
      and table.concat(given[i].shape, ",") == table.concat(tensor.shape, ",")
  end
  if not fits then error("opt:load takes the result of opt:state() of an optimizer of the same model", 3) end
end

-- The number of steps of each parameter.
local function load_counts(state, counts)
  local out = {}
  for i in ipairs(counts) do out[i] = state.counts and state.counts[i] or state.steps end
  return out
end

-- ---- AdamW (Loshchilov and Hutter, 2019)

local AdamW = setmetatable({}, { __index = Optimizer })
AdamW.__index = AdamW

local adamw_defaults = { lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 1e-2 }

function optim.adamw(model, options)
  local self = setmetatable({ steps = 0 }, AdamW)
  self.groups = read_groups("flow.optim.adamw", model, options, adamw_defaults)
  self.mean, self.square, self.counts = zeros_like(self), zeros_like(self), no_counts(self)
  return self
end

-- While flow.graph records: before each launch, counts one more step and sets the rates that the launch reads. The
-- caller then fills recorded[group] with what flow.adamw_ returns: the index of the group's first rate.
local function follow_launches(self, changed, lists, recorded)
  if not flow.is_capturing() then return end
  local function advance(by)
    self.steps = self.steps + by
    for i, item in pairs(changed) do
      self.counts[i] = self.counts[i] + by
      item[5] = self.counts[i]
    end
  end
  flow.at_replay(function()
    advance(1)
    for group, first in pairs(recorded) do flow.adamw_(lists[group], group.options, nil, first) end
  end, function() advance(-1) end)
end

-- Gradients are multiplied by `scale`: use 1 / n after n calls of backward, or the result of clip_grad_factor. A tensor
-- of one number stays on its device. The parameters of a group are changed together.
function AdamW:step(scale)
  local lists, changed, recorded = {}, {}, {}
  local is_tensor = flow.is_tensor(scale)
  each_gradient(self, not is_tensor and scale or nil, function(i, parameter, grad, group)
    lists[group] = lists[group] or {}
    local item = { parameter, grad, self.mean[i], self.square[i], self.counts[i] }
    table.insert(lists[group], item)
    changed[i] = item
  end)
  follow_launches(self, changed, lists, recorded)
  for _, group in ipairs(self.groups) do
    if lists[group] then recorded[group] = flow.adamw_(lists[group], group.options, is_tensor and scale or nil) end
  end
end

-- The state that a checkpoint needs to continue with the same steps.
function AdamW:state()
  return { steps = self.steps, counts = flow.table.copy(self.counts), lr = self:lr(), rates = rates_of(self),
    mean = clones(self.mean), square = clones(self.square) }
end

function AdamW:load(state)
  if type(state) ~= "table" or math.type(state.steps) ~= "integer" then check_fit(nil, { 1 }) end
  check_fit(state.mean, self.mean)
  check_fit(state.square, self.square)
  self.steps = state.steps
  copy_all(state.mean, self.mean)
  copy_all(state.square, self.square)
  self.counts = load_counts(state, self.counts)
  load_rates(self, state)
  return self
end

-- ---- SGD, with momentum

local Sgd = setmetatable({}, { __index = Optimizer })
Sgd.__index = Sgd

local sgd_defaults = { lr = 1e-2, momentum = 0, dampening = 0, weight_decay = 0, nesterov = false }

function optim.sgd(model, options)
  local self = setmetatable({ steps = 0 }, Sgd)
  self.groups = read_groups("flow.optim.sgd", model, options, sgd_defaults)
  local moves = false
  for _, group in ipairs(self.groups) do
    moves = moves or group.options.momentum > 0
    if group.options.nesterov and (group.options.momentum == 0 or group.options.dampening ~= 0) then
      error("flow.optim.sgd: nesterov needs a momentum, and no dampening", 2)
    end
  end
  self.momentum, self.counts = moves and zeros_like(self) or {}, no_counts(self)
  return self
end

function Sgd:step(scale)
  if flow.is_tensor(scale) then scale = scale:item() end
  each_gradient(self, scale, function(i, parameter, grad, group)
    parameter:sgd_(grad, group.options.momentum > 0 and self.momentum[i] or nil, group.options)
  end)
end

function Sgd:state()
  return { steps = self.steps, counts = flow.table.copy(self.counts), lr = self:lr(), rates = rates_of(self),
    momentum = clones(self.momentum) }
end

function Sgd:load(state)
  if type(state) ~= "table" or math.type(state.steps) ~= "integer" then check_fit(nil, { 1 }) end
  check_fit(state.momentum, self.momentum)
  self.steps = state.steps
  copy_all(state.momentum, self.momentum)
  self.counts = load_counts(state, self.counts)
  load_rates(self, state)
  return self
end

-- ---- on several ranks

optim.sharded = require "flow.optim.sharded"

-- ---- gradients

-- Scales the gradients of a model or a list of tensors together so that their norm is at most `limit`; returns the norm
-- before: a number, or a tensor if the gradients are on a GPU, so that nothing waits for it.
function optim.clip_grad_norm(model, limit)
  check_number("flow.optim.clip_grad_norm", "limit", limit)
  return flow.clip_grad_norm(model.parameters and model:parameters() or model, limit)
end

-- The factor by which clip_grad_norm would scale, and the norm: tensors of one number. AdamW's opt:step(factor) applies it
-- without a pass over the gradients.
function optim.clip_grad_factor(model, limit)
  check_number("flow.optim.clip_grad_factor", "limit", limit)
  return flow.clip_grad_factor(model.parameters and model:parameters() or model, limit)
end

---- schedules: functions of the step, from 1

local schedule_options = { lr = 0, warmup = 0, total = 0, min_lr = 0 }

local function read_schedule(where, options, needs_total)
  if type(options) ~= "table" then
    error(where .. " takes a table, " .. where .. " { lr = 3e-4, total = 1000 }, not a " .. type(options), 3)
  end
  check_names(where, options, schedule_options, 3)
  for name in pairs(options) do check_number(where, name, options[name], 4) end
  local lr, warmup, total, least = options.lr, options.warmup or 0, options.total, options.min_lr or 0
  if not lr or (needs_total and not total) or (total and total <= warmup) then
    error(where .. " takes { lr =, total =, warmup =, min_lr = } with total greater than warmup", 3)
  end
  return lr, warmup, total, least
end

-- Rises to `lr` over `warmup` steps, then falls along a cosine to `min_lr` at step `total`.
--   local rate = flow.optim.cosine { lr = 3e-4, warmup = 100, total = 1000 }
--   opt:set_lr(rate(step))
function optim.cosine(options)
  local lr, warmup, total, least = read_schedule("flow.optim.cosine", options, true)
  return function(step)
    if step < warmup then return lr * step / warmup end
    if step >= total then return least end
    return least + (lr - least) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
  end
end

-- Rises to `lr` over `warmup` steps, then falls linearly to `min_lr` at step `total`; without `total` it stays
-- constant.
function optim.linear(options)
  local lr, warmup, total, least = read_schedule("flow.optim.linear", options, false)
  return function(step)
    if step < warmup then return lr * step / warmup end
    if not total then return lr end
    if step >= total then return least end
    return lr + (least - lr) * (step - warmup) / (total - warmup)
  end
end

return optim
