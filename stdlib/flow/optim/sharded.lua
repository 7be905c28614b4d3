-- An optimizer whose moments are sharded over the ranks of a task (ZeRO, stage 1: Rajbhandari et al., 2020): each rank
-- stores the moments of its shard of all elements, updates that shard of the parameters, and gets the rest from the
-- others.
--
--   local opt = flow.optim.sharded(ctx.comm, flow.optim.adamw, model, { lr = 1e-3 })
--
-- Parameters of one type on one device are concatenated and split into equal shards, one per rank. A parameter may span
-- several shards, and a step changes each element as it would without ranks.
local flow = require "flow"

local Sharded = {}
Sharded.__index = Sharded

local WHERE = "flow.optim.sharded"

-- { params = list, … } for each group, as given to an optimizer.
local function groups_of(given, level)
  if type(given) == "table" and given.parameters then return { { params = given:parameters() } } end
  if type(given) == "table" and (flow.is_tensor(given[1]) or next(given) == nil) then return { { params = given } } end
  if type(given) ~= "table" or type(given[1]) ~= "table" or not given[1].params then
    error(WHERE .. " takes ctx.comm, an optimizer, a model and options: " .. WHERE
      .. "(ctx.comm, flow.optim.adamw, model, { lr = 1e-3 })", level + 1)
  end
  local groups = {}
  for i, group in ipairs(given) do
    groups[i] = flow.table.copy(group)
    if group.params.parameters then groups[i].params = group.params:parameters() end
  end
  return groups
end

-- The parameters of one type on one device: { dtype, device, places, firsts, count, piece }.
local function families_of(parameters, ranks, level)
  local by_kind, families = {}, {}
  for i, parameter in ipairs(parameters) do
    if not flow.is_tensor(parameter) or not parameter.is_leaf or not parameter:is_contiguous() then
      error(WHERE .. ": parameter " .. i .. ": expected a tensor that is a leaf and contiguous; make it with "
        .. "flow.nn.parameter(x:contiguous())", level + 1)
    end
    local kind = parameter.dtype .. " " .. parameter.device
    local family = by_kind[kind]
    if not family then
      family = { dtype = parameter.dtype, device = parameter.device, places = {}, firsts = {}, count = 0 }
      by_kind[kind] = family
      families[#families + 1] = family
    end
    family.places[#family.places + 1] = i
    family.firsts[i] = family.count
    family.count = family.count + parameter:count()
  end
  for _, family in ipairs(families) do family.piece = math.max(1, -(-family.count // ranks)) end
  return families
end

-- The elements of parameter `i` in this rank's shard: the first, from 1, their number, and their position in the shard.
local function overlap(self, family, i)
  local first, count = family.firsts[i], self.parameters[i]:count()
  local from = math.max(first, self.comm.rank * family.piece)
  local to = math.min(first + count, (self.comm.rank + 1) * family.piece)
  if from >= to then return end
  return from - first + 1, to - from, from - self.comm.rank * family.piece + 1
end

-- Calls visit(i, family, from, count, at) for each parameter of which this rank has a part, in the order of parameters.
local function each_part(self, visit)
  for i in ipairs(self.parameters) do
    local family = self.family_of[i]
    local from, count, at = overlap(self, family, i)
    if from then visit(i, family, from, count, at) end
  end
end

local function part(tensor, from, count) return tensor:detach():reshape(-1):narrow(1, from, count) end

local function make_sharded(comm, make, model, options)
  if type(comm) ~= "userdata" or type(make) ~= "function" then
    error(WHERE .. " takes ctx.comm and an optimizer such as flow.optim.adamw first", 3)
  end
  local groups = groups_of(model, 3)
  local self = setmetatable({ comm = comm, parameters = {}, parts = {}, family_of = {} }, Sharded)
  local group_of = {}
  for at, group in ipairs(groups) do
    for _, parameter in ipairs(group.params) do
      self.parameters[#self.parameters + 1] = parameter
      group_of[#self.parameters] = at
    end
    group.params = {}
  end
  self.families = families_of(self.parameters, comm.ranks, 3)
  for _, family in ipairs(self.families) do
    for _, i in ipairs(family.places) do self.family_of[i] = family end
  end
  if #self.parameters == 0 then
    error(WHERE .. " got an empty list of parameters: the model has none, or is frozen; model:requires_grad_(true) "
      .. "unfreezes it", 3)
  end
  groups.is_share = true
  each_part(self, function(i, _, from, count)
    local own = part(self.parameters[i], from, count)
    self.parts[#self.parts + 1] = own
    local params = groups[group_of[i]].params
    params[#params + 1] = own
  end)
  self.inner = make(groups, options)
  return self
end

function Sharded:zero_grad()
  for _, parameter in ipairs(self.parameters) do parameter.grad = nil end
end

function Sharded:lr() return self.inner:lr() end
function Sharded:set_lr(lr) return self.inner:set_lr(lr) end

-- Gathers all ranks' parts of the family, where part_of(i) is this rank's part of parameter i: write(i, numbers) gets
-- each complete parameter.
local function gather(self, family, part_of, write)
  local own = flow.zeros(family.piece, { dtype = family.dtype, device = family.device })
  each_part(self, function(i, its, _, count, at)
    local numbers = its == family and part_of(i)
    if numbers then own:narrow(1, at, count):copy_(numbers) end
  end)
  local all = self.comm:all_gather(own)
  for _, i in ipairs(family.places) do
    local parameter = self.parameters[i]
    write(i, all:narrow(1, family.firsts[i] + 1, parameter:count()):reshape(parameter.shape))
  end
end

-- The parameter of each part.
local function places_of(self)
  local out = {}
  each_part(self, function(i) out[#out + 1] = i end)
  return out
end

-- Gradients are multiplied by `scale`. They must be equal on all ranks, as after flow.nn.data_parallel.
function Sharded:step(scale)
  local any, own = false, false
  for _, parameter in ipairs(self.parameters) do any = any or parameter.grad ~= nil end
  if #self.parameters > 0 and not any then
    error("opt:step: no parameter has a gradient: call loss:backward() before it", 2)
  end
  local at = 0
  each_part(self, function(i, _, from, count)
    at = at + 1
    local gradient = self.parameters[i].grad
    own = own or gradient ~= nil
    self.parts[at].grad = gradient and part(gradient:contiguous(), from, count) or nil
  end)
  if own then self.inner:step(scale) else self.inner.steps = self.inner.steps + 1 end
  for _, each in ipairs(self.parts) do each.grad = nil end
  if self.comm.ranks == 1 then return end
  local part_at = {}
  for place, i in ipairs(places_of(self)) do part_at[i] = self.parts[place] end
  flow.no_grad(function()
    for _, family in ipairs(self.families) do
      gather(self, family, function(i) return part_at[i] end, function(i, numbers) self.parameters[i]:copy_(numbers) end)
    end
  end)
end

local function holds_tensors(value) return type(value) == "table" and flow.is_tensor(value[1]) end

-- Called by all ranks together; each gets the state that an optimizer without ranks would return and can load. So it
-- can be loaded with another number of ranks.
function Sharded:state()
  local own, places = self.inner:state(), places_of(self)
  local contents = { counts = {}, tensors = {} }
  for place, i in ipairs(places) do contents.counts[i] = own.counts[place] end
  for name, value in pairs(own) do
    if name ~= "counts" and holds_tensors(value) then contents.tensors[name] = true end
  end
  local out, names = flow.table.copy(own), {}
  out.counts = {}
  for _, theirs in ipairs(self.comm:all_gather(contents)) do
    for i, count in pairs(theirs.counts) do out.counts[i] = count end
    for name in pairs(theirs.tensors) do names[name] = true end
  end
  for i in ipairs(self.parameters) do out.counts[i] = out.counts[i] or own.steps end
  for name in pairs(names) do
    local part_at = {}
    for place, i in ipairs(places) do part_at[i] = own[name][place] end
    out[name] = {}
    for _, family in ipairs(self.families) do
      gather(self, family, function(i) return part_at[i] end,
        function(i, numbers) out[name][i] = numbers:clone() end)
    end
  end
  return out
end

local function check_fit(self, list)
  local fits = #list == 0 or #list == #self.parameters
  for i, tensor in ipairs(list) do
    fits = fits and flow.is_tensor(tensor)
      and table.concat(tensor.shape, ",") == table.concat(self.parameters[i].shape, ",")
  end
  if not fits then error("opt:load takes the result of opt:state() of an optimizer of the same model", 3) end
end

function Sharded:load(state)
  if type(state) ~= "table" or math.type(state.steps) ~= "integer" then check_fit(self, { 0 }) end
  local own = flow.table.copy(state)
  for name, value in pairs(state) do
    if name == "counts" then
      own.counts = {}
      for place, i in ipairs(places_of(self)) do own.counts[place] = value[i] end
    elseif type(value) == "table" and name ~= "rates" then
      check_fit(self, value)
      own[name] = {}
      if #value > 0 then
        each_part(self, function(i, _, from, count) table.insert(own[name], part(value[i]:contiguous(), from, count)) end)
      end
    end
  end
  self.inner:load(own)
  return self
end

return make_sharded
