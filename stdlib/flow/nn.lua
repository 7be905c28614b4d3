-- Modules: layers and models with parameters, state and gradients. Names, defaults and numerics are PyTorch's; labels,
-- indices and dimensions count from 1.
--
--   local model = flow.nn.sequential { flow.nn.linear(64, 128), flow.nn.relu(), flow.nn.linear(128, 10) }
--   local loss = flow.nn.cross_entropy(model(x), labels)
--   opt:zero_grad(); loss:backward(); opt:step()
--
-- A module of your own is a class with init and forward. The module system finds what it stores in its fields: tensors
-- that want gradients are its parameters, other tensors its buffers, modules (also in lists) its children.
--
--   local Net = flow.nn.class("Net")
--   function Net:init(width) self.inner = flow.nn.linear(width, width) end
--   function Net:forward(x) return x + self.inner(x):relu() end
--   local net = Net(64)
local flow = require "flow"

local nn = {}

---- methods of every module

local Module = {}
Module.__index = Module

local function is_module(value) return type(value) == "table" and rawget(value, "__is_module") == true end

-- Visits each tensor below `value`: visit(name, tensor, holder, key, place), where the place is its Lua expression. A
-- field whose name begins with _ is private to the module.
local function walk(value, prefix, visit, seen, place)
  if seen[value] then return end
  seen[value] = true
  for key, field in pairs(value) do
    local private = type(key) == "string" and key:sub(1, 1) == "_"
    if not private and (type(key) == "string" or math.type(key) == "integer") then
      local name = prefix .. tostring(key)
      local here = (place or "") .. (math.type(key) and "[" .. key .. "]" or ("[%q]"):format(key))
      if flow.is_tensor(field) then
        visit(name, field, value, key, here)
      elseif type(field) == "table" and (is_module(field) or not getmetatable(field)) then
        walk(field, name .. ".", visit, seen, here)
      end
    end
  end
end

-- The tensors of a module: a list of { name =, tensor = }. A tensor with two names is listed once, under its first
-- name; two tensors with one name are an error, because a state could not distinguish them.
local function named_tensors(module, where)
  local out, known, places, clash = {}, {}, {}, nil
  walk(module, "", function(name, tensor, _, _, place)
    if known[tensor] then return end
    known[tensor] = true
    clash = clash or places[name] and { name = name, places[name], place }
    places[name] = place
    out[#out + 1] = { name = name, tensor = tensor }
  end, {})
  if clash then
    error(where .. ": the fields model" .. clash[1] .. " and model" .. clash[2] .. " both have the name `" .. clash.name
      .. "`: give one of them another", 3)
  end
  return out
end

local function walk_modules(value, visit, seen)
  if seen[value] then return end
  seen[value] = true
  if is_module(value) then visit(value) end
  for key, field in pairs(value) do
    local private = type(key) == "string" and key:sub(1, 1) == "_"
    if not private and type(field) == "table" and (is_module(field) or not getmetatable(field)) then
      walk_modules(field, visit, seen)
    end
  end
end

-- A tensor that two modules share is one parameter, under its first name.
function Module:named_parameters()
  local out, known = {}, {}
  walk(self, "", function(name, tensor)
    if tensor.is_leaf and tensor.requires_grad and not known[tensor] then
      known[tensor] = true
      out[#out + 1] = { name = name, tensor = tensor }
    end
  end, {})
  return out
end

function Module:parameters()
  local out = {}
  for i, each in ipairs(self:named_parameters()) do out[i] = each.tensor end
  return out
end

-- The gradients of the parameters, in their order; zeros for parameters that backward did not reach.
function Module:gradients()
  local out = {}
  for i, parameter in ipairs(self:parameters()) do
    if not parameter.grad then parameter.grad = flow.zeros_like(parameter) end
    out[i] = parameter.grad
  end
  return out
end

function Module:zero_grad()
  for _, parameter in ipairs(self:parameters()) do parameter.grad = nil end
  return self
end

-- The number of elements of all parameters.
function Module:count()
  local total = 0
  for _, parameter in ipairs(self:parameters()) do total = total + parameter:count() end
  return total
end

-- Parameters and buffers, in their order.
function Module:named_tensors() return named_tensors(self, "model:named_tensors") end

-- Copies of parameters and buffers by name, which can cross an edge or be checkpointed.
function Module:state()
  local out = {}
  for _, each in ipairs(named_tensors(self, "model:state")) do out[each.name] = each.tensor:detach():clone() end
  return out
end

local function shape_text(x) return "[" .. table.concat(x.shape, ", ") .. "]" end

-- Loads a result of state(). With { strict = false } names may be missing or unknown, and a list of both is returned.
function Module:load(state, options)
  local strict = not (options and options.strict == false)
  if type(state) ~= "table" then
    error("model:load takes a state as model:state() gives it, not a " .. type(state), 2)
  end
  local own, missing, extra = {}, {}, {}
  for _, each in ipairs(named_tensors(self, "model:load")) do own[each.name] = each.tensor end
  for name, tensor in pairs(own) do
    local given = state[name]
    if given == nil then
      missing[#missing + 1] = name
    elseif not flow.is_tensor(given) or shape_text(given) ~= shape_text(tensor) then
      error("model:load: parameter `" .. name .. "` has shape " .. shape_text(tensor) .. ", the state has "
        .. (flow.is_tensor(given) and shape_text(given) or "a " .. type(given)), 2)
    end
  end
  for name in pairs(state) do
    if not own[name] then extra[#extra + 1] = tostring(name) end
  end
  if strict and (#missing > 0 or #extra > 0) then
    error("model:load: the state is not of this model:"
      .. (#missing > 0 and " it lacks `" .. table.concat(missing, "`, `") .. "`" or "")
      .. (#missing > 0 and #extra > 0 and ";" or "")
      .. (#extra > 0 and " it has `" .. table.concat(extra, "`, `") .. "` that the model has not" or "")
      .. "; pass { strict = false } to load what fits", 2)
  end
  flow.no_grad(function()
    for name, tensor in pairs(own) do
      if state[name] ~= nil then tensor:copy_(state[name]) end
    end
  end)
  if not strict then return self, missing, extra end
  return self
end

-- Moves or casts every tensor of the module: model:to("cuda:0"), model:to("f64").
function Module:to(...)
  local where = { ... }
  local done = {}
  walk(self, "", function(_, tensor, holder, key)
    if not done[tensor] then
      -- Integers stay integers if the target is a floating-point type.
      local target = {}
      for _, each in ipairs(where) do
        local is_device = each == "cpu" or tostring(each):sub(1, 4) == "cuda"
        local floats = tensor.dtype == "f32" or tensor.dtype == "f64" or tensor.dtype == "f16" or tensor.dtype == "bf16"
        if is_device or floats then target[#target + 1] = each end
      end
      local moved = tensor
      if #target > 0 then moved = tensor:detach():to(table.unpack(target)) end
      -- An optimizer may hold tensors that need no move.
      if moved.device == tensor.device and moved.dtype == tensor.dtype then moved = tensor end
      if tensor.is_parameter and not rawequal(moved, tensor) then
        moved.requires_grad = true
        moved.requires_grad = tensor.requires_grad
      end
      done[tensor] = moved
    end
    holder[key] = done[tensor]
  end, {})
  return self
end

-- Enables or disables dropout and similar layers: model:train(), model:eval().
function Module:train(flag)
  if flag == nil then flag = true end
  walk_modules(self, function(module) module.training = flag end, {})
  return self
end

function Module:eval() return self:train(false) end

-- Whether its parameters want gradients: model:requires_grad_(false) freezes the model. Buffers never want them.
function Module:requires_grad_(flag)
  if flag == nil then flag = true end
  walk(self, "", function(_, tensor)
    if tensor.is_parameter then tensor.requires_grad = flag end
  end, {})
  return self
end

-- Calls f with every module in it, itself first.
function Module:apply(f)
  walk_modules(self, f, {})
  return self
end

function Module:forward() error("this module has no forward(x)", 2) end

-- A class of modules; calling it makes a module.
function nn.class(name)
  local class = setmetatable({}, {
    __index = Module,
    __call = function(class, ...)
      local made = setmetatable({ __is_module = true, training = true }, class)
      if class.init then class.init(made, ...) end
      return made
    end,
  })
  class.__index = class
  class.__name = name
  class.__call = function(self, ...) return self:forward(...) end
  return class
end

-- Errors point to the line that makes the module: above init and above the call of the class.

-- A tensor that wants its gradient.
function nn.parameter(tensor) return tensor:detach():requires_grad_() end

local function check_sizes(name, example, ...)
  for _, size in ipairs { ... } do
    if math.type(size) ~= "integer" or size < 1 then
      error(name .. " takes sizes, integers of 1 or more: " .. example, 4)
    end
  end
end

local function check_options(name, options, known, level)
  level = level or 4
  local names = {}
  for each in pairs(known) do names[#names + 1] = each end
  table.sort(names)
  if options ~= nil and type(options) ~= "table" then
    error(name .. " takes its options as a table, { " .. names[1] .. " = … }, not a " .. type(options), level)
  end
  local out = {}
  for key, value in pairs(known) do out[key] = value end
  for key, value in pairs(options or {}) do
    if known[key] == nil then
      error(name .. " has no option `" .. tostring(key) .. "`: there are " .. table.concat(names, ", "), level)
    end
    out[key] = value
  end
  return out
end

-- Raises an error for extra arguments, which would be ignored otherwise.
local function check_no_more(name, taken, ...)
  if select("#", ...) > 0 then error(name .. " takes " .. taken, 4) end
end

local function uniform(shape, bound) return nn.parameter((flow.rand(shape) * 2 - 1) * bound) end

-- ---- y = x * W^T + b, with x [..., inputs] and W [outputs, inputs]

local Linear = nn.class("Linear")

-- Weights and bias are uniform in ±1/sqrt(inputs), as in torch.nn.Linear.
function Linear:init(inputs, outputs, options)
  check_sizes("flow.nn.linear", "flow.nn.linear(inputs, outputs)", inputs or 0, outputs or 0)
  local given = check_options("flow.nn.linear", options, { bias = true })
  local bound = 1 / math.sqrt(inputs)
  self.weight = uniform({ outputs, inputs }, bound)
  if given.bias then self.bias = uniform({ outputs }, bound) end
end

-- With an activation, "relu", "gelu" or "gelu_tanh", its value of y.
function Linear:forward(x, activation)
  local inputs = self.weight:size(2)
  if not flow.is_tensor(x) or x:dims() == 0 or x:size(-1) ~= inputs then
    error("this linear layer takes a tensor [..., " .. inputs .. "], not "
      .. (flow.is_tensor(x) and shape_text(x) or "a " .. type(x)), 2)
  end
  if x.dtype == "u8" or x.dtype == "i32" or x.dtype == "i64" or x.dtype == "bool" then x = x:to(self.weight.dtype) end
  return x:linear(self.weight, self.bias, activation)
end

nn.linear = Linear

-- ---- a row of a table for each index

local Embedding = nn.class("Embedding")

function Embedding:init(rows, width, ...)
  check_sizes("flow.nn.embedding", "flow.nn.embedding(rows, width)", rows or 0, width or 0)
  check_no_more("flow.nn.embedding", "the number of rows and their width, no more", ...)
  self.weight = nn.parameter(flow.randn(rows, width))
end

function Embedding:forward(index) return self.weight:embedding(index) end

nn.embedding = Embedding

-- ---- norms over the last dimension

local LayerNorm = nn.class("LayerNorm")

function LayerNorm:init(width, options)
  check_sizes("flow.nn.layer_norm", "flow.nn.layer_norm(width)", width or 0)
  local given = check_options("flow.nn.layer_norm", options, { eps = 1e-5, bias = true })
  self.eps = given.eps
  self.weight = nn.parameter(flow.ones(width))
  if given.bias then self.bias = nn.parameter(flow.zeros(width)) end
end

-- With `for_product` the result is used by products only: autocast rounds it here.
function LayerNorm:forward(x, for_product)
  return x:layer_norm(self.weight, self.bias, self.eps, for_product == true)
end

-- x + y, and its norm: less work on a GPU than one after the other.
function LayerNorm:add(x, y, for_product)
  return x:add_layer_norm(y, self.weight, self.bias, self.eps, for_product == true)
end

nn.layer_norm = LayerNorm

local RmsNorm = nn.class("RmsNorm")

function RmsNorm:init(width, options)
  check_sizes("flow.nn.rms_norm", "flow.nn.rms_norm(width)", width or 0)
  self.eps = check_options("flow.nn.rms_norm", options, { eps = 1e-6 }).eps
  self.weight = nn.parameter(flow.ones(width))
end

function RmsNorm:forward(x, for_product) return x:rms_norm(self.weight, self.eps, for_product == true) end

function RmsNorm:add(x, y, for_product) return x:add_rms_norm(y, self.weight, self.eps, for_product == true) end

nn.rms_norm = RmsNorm

-- ---- functions of one number, as modules

-- `takes` describes the method's argument, if it has one.
local function function_module(name, method, takes)
  local class = nn.class(name)
  function class:init(...)
    if takes then
      self.argument = (...)
      check_no_more("flow.nn." .. method, takes, select(2, ...))
    else
      check_no_more("flow.nn." .. method, "no arguments", ...)
    end
  end
  function class:forward(x) return x[method](x, self.argument) end
  return class
end

nn.relu = function_module("Relu", "relu")
nn.gelu = function_module("Gelu", "gelu", "\"tanh\" or nothing")
nn.silu = function_module("Silu", "silu")
nn.tanh = function_module("Tanh", "tanh")
nn.sigmoid = function_module("Sigmoid", "sigmoid")
nn.softmax = function_module("Softmax", "softmax", "a dimension or nothing")
nn.log_softmax = function_module("LogSoftmax", "log_softmax", "a dimension or nothing")

local Identity = nn.class("Identity")
function Identity:init(...) check_no_more("flow.nn.identity", "no arguments", ...) end
function Identity:forward(x) return x end
nn.identity = Identity

-- [n, ...] to [n, all the rest]
local Flatten = nn.class("Flatten")
function Flatten:init(...) check_no_more("flow.nn.flatten", "no arguments", ...) end
function Flatten:forward(x) return x:flatten(2) end
nn.flatten = Flatten

local Dropout = nn.class("Dropout")

function Dropout:init(p, ...)
  check_no_more("flow.nn.dropout", "a probability, no more", ...)
  p = p or 0.5
  if type(p) ~= "number" or p < 0 or p > 1 then
    error("flow.nn.dropout takes a probability of 0 to 1, not " .. tostring(p), 3)
  end
  self.p = p
end

function Dropout:forward(x)
  if not self.training or self.p == 0 then return x end
  return x:dropout(self.p)
end

nn.dropout = Dropout

---- images [n, channels, height, width]

local Conv2d = nn.class("Conv2d")

local function pair(value) return type(value) == "table" and value or { value, value } end

function Conv2d:init(inputs, outputs, window, options)
  check_sizes("flow.nn.conv2d", "flow.nn.conv2d(inputs, outputs, window)", inputs or 0, outputs or 0)
  local given = check_options("flow.nn.conv2d", options,
    { stride = 1, padding = 0, dilation = 1, groups = 1, bias = true })
  local sides = pair(window)
  check_sizes("flow.nn.conv2d", "flow.nn.conv2d(inputs, outputs, window)", sides[1] or 0, sides[2] or 0)
  if math.type(given.groups) ~= "integer" or given.groups < 1 then
    error("flow.nn.conv2d: the option `groups` is a whole number of 1 or more, not " .. tostring(given.groups), 3)
  end
  if inputs % given.groups ~= 0 or outputs % given.groups ~= 0 then
    error("flow.nn.conv2d: " .. given.groups .. " groups do not divide both " .. inputs .. " inputs and "
      .. outputs .. " outputs evenly", 3)
  end
  local fan = inputs // given.groups * sides[1] * sides[2]
  self.weight = uniform({ outputs, inputs // given.groups, sides[1], sides[2] }, 1 / math.sqrt(fan))
  if given.bias then self.bias = uniform({ outputs }, 1 / math.sqrt(fan)) end
  self._options = { stride = given.stride, padding = given.padding, dilation = given.dilation, groups = given.groups }
end

function Conv2d:forward(x) return x:conv2d(self.weight, self.bias, self._options) end

nn.conv2d = Conv2d

local function pool_module(name, method)
  local class = nn.class(name)
  function class:init(window, options)
    self._window = window
    self._options = check_options("flow.nn." .. method, options, { stride = window, padding = 0 })
  end
  function class:forward(x) return x[method](x, self._window, self._options) end
  return class
end

nn.max_pool2d = pool_module("MaxPool2d", "max_pool2d")
nn.avg_pool2d = pool_module("AvgPool2d", "avg_pool2d")

-- ---- modules one after the other

local Sequential = nn.class("Sequential")

function Sequential:init(layers, ...)
  if type(layers) ~= "table" or #layers == 0 or select("#", ...) > 0 then
    error("flow.nn.sequential takes a list of layers: flow.nn.sequential { flow.nn.linear(2, 3), flow.nn.relu() }", 3)
  end
  for i, each in ipairs(layers) do
    if not is_module(each) then
      error("flow.nn.sequential: item " .. i .. " is not a layer; did you forget to call it, as in flow.nn.relu()?", 3)
    end
    self[i] = each
  end
end

function Sequential:forward(x)
  for _, each in ipairs(self) do x = each:forward(x) end
  return x
end

nn.sequential = Sequential

-- ---- transformers

-- The keys and values of causal attention at earlier positions, so that each position is computed once. One cache
-- serves all attention modules of a model: model(tokens, cache), with the next tokens of the same sequences each time.
local Cache = {}
Cache.__index = Cache

-- flow.nn.kv_cache(capacity): `capacity` is the largest number of positions. The memory is allocated at the first call of
-- each module, and is filled in place.
function nn.kv_cache(capacity)
  check_sizes("flow.nn.kv_cache", "flow.nn.kv_cache(1024)", capacity or 0)
  return setmetatable({ capacity = capacity, length = 0, _entries = {} }, Cache)
end

-- Each launch of a recording would use the length of the recording.
local function check_not_recorded()
  if flow.is_capturing() then
    error("a cache of keys and values cannot be used in flow.graph: its length differs in each call", 3)
  end
end

-- Forgets all positions and keeps the memory.
function Cache:clear()
  check_not_recorded()
  self.length = 0
  for _, entry in pairs(self._entries) do entry.length = 0 end
  return self
end

-- The number of positions that a module has stored. During a forward, modules that ran have more than the others.
function Cache:length_of(module)
  local entry = self._entries[module]
  return entry and entry.length or 0
end

-- Stores k and v [batch, groups, t, size] after the earlier ones of the module; returns views of all of them. If k
-- and v are slices of one tensor, pass it as `both` [batch, 2 * groups, t, size]: one copy stores it.
function Cache:append(module, k, v, both)
  check_not_recorded()
  local batch, groups, t, size = k:size(1), k:size(2), k:size(3), k:size(4)
  local entry = self._entries[module]
  if not entry then
    local room = flow.zeros({ batch, 2 * groups, self.capacity, size }, { dtype = k.dtype, device = k.device })
    entry = { both = room, k = room:narrow(2, 1, groups), v = room:narrow(2, groups + 1, groups), length = 0 }
    self._entries[module] = entry
  end
  if entry.length == 0 and entry.k:size(1) ~= batch then  -- cleared
    self._entries[module] = nil
    return self:append(module, k, v, both)
  end
  if entry.k:size(1) ~= batch then
    error("this cache holds " .. entry.k:size(1) .. " sequences, not " .. batch .. ": one cache is for one batch", 2)
  end
  local length = entry.length + t
  if length > self.capacity then
    error("this cache has room for " .. self.capacity .. " positions, not " .. length, 2)
  end
  local function put(place, x) place:narrow(3, entry.length + 1, t):copy_(x) end
  if both then
    put(entry.both, both)
  else
    put(entry.k, k)
    put(entry.v, v)
  end
  entry.length, self.length = length, length
  return entry.k:narrow(3, 1, length), entry.v:narrow(3, 1, length)
end

local Attention = nn.class("Attention")

-- Self-attention of x [batch, t, width] over `heads`; with `groups`, fewer keys and values than queries; with `rotary`
-- (true, or its base), rotary positions of queries and keys.
function Attention:init(width, heads, options)
  check_sizes("flow.nn.attention", "flow.nn.attention(width, heads)", width or 0, heads or 0)
  local given = check_options("flow.nn.attention", options,
    { causal = false, groups = false, bias = true, dropout = 0, rotary = false })
  local groups = given.groups or heads
  if width % heads ~= 0 or heads % groups ~= 0 then
    error("flow.nn.attention: " .. heads .. " heads divide a width of " .. width .. ", and " .. groups
      .. " groups the heads", 3)
  end
  local size = width // heads
  self._heads, self._groups, self._size = heads, groups, size
  self._causal = given.causal
  self._rotary = given.rotary == true and 10000 or given.rotary
  self.qkv = nn.linear(width, (heads + 2 * groups) * size, { bias = given.bias })
  self.out = nn.linear(width, width, { bias = given.bias })
  self.dropout = nn.dropout(given.dropout)
end

-- Appends k and v to the cache; returns the keys and values of all positions.
local function extend(cache, module, k, v, both)
  if not module._causal then
    error("attention with a cache is causal: flow.nn.attention(width, heads, { causal = true })", 3)
  end
  if flow.is_grad_enabled() and k.requires_grad then
    error("attention with a cache records no gradients: call it in flow.no_grad", 3)
  end
  return cache:append(module, k, v, both)
end

-- With a cache (flow.nn.kv_cache), x continues the sequences whose keys and values are in it.
function Attention:forward(x, cache)
  local packed = self.qkv(x)
  local heads, groups, size = self._heads, self._groups, self._size
  local y
  if cache or self._rotary then
    local batch, t = x:size(1), x:size(2)
    local function part(first, count)
      return packed:narrow(3, first * size + 1, count * size):reshape(batch, t, count, size):t(2, 3)
    end
    local q, k, v = part(0, heads), part(heads, groups), part(heads + groups, groups)
    local both = not self._rotary and part(heads, 2 * groups)
    if self._rotary then
      local first = cache and cache:length_of(self) or 0
      q, k = q:rotary(first, self._rotary), k:rotary(first, self._rotary)
    end
    if cache then k, v = extend(cache, self, k, v, both) end
    y = q:attention(k, v, { causal = self._causal })
    y = y:t(2, 3):reshape(batch, t, heads * size)
  else
    y = packed:self_attention(heads, { groups = groups, causal = self._causal })
  end
  return self.dropout(self.out(y))
end

nn.attention = Attention

local TransformerBlock = nn.class("TransformerBlock")

-- x + attention(norm(x)), then x + mlp(norm(x)), as in GPT-2.
function TransformerBlock:init(width, heads, options)
  check_sizes("flow.nn.transformer_block", "flow.nn.transformer_block(width, heads)", width or 0, heads or 0)
  local given = check_options("flow.nn.transformer_block", options, { causal = true, groups = false, bias = true,
    dropout = 0, rotary = false, hidden = false, activation = "gelu_tanh", norm = "layer" })
  local function one_of(name, value, ...)
    for _, each in ipairs { ... } do
      if value == each then return end
    end
    error("flow.nn.transformer_block: " .. name .. " is one of " .. table.concat({ ... }, ", ") .. ", not "
      .. tostring(value), 4)
  end
  one_of("norm", given.norm, "layer", "rms")
  one_of("activation", given.activation, "gelu_tanh", "gelu", "relu", "silu")
  local norm = given.norm == "rms" and nn.rms_norm or nn.layer_norm
  local hidden = given.hidden or 4 * width
  self.norm1, self.norm2 = norm(width), norm(width)
  self.attention = nn.attention(width, heads, { causal = given.causal, groups = given.groups, bias = given.bias,
    dropout = given.dropout, rotary = given.rotary })
  self.up = nn.linear(width, hidden, { bias = given.bias })
  self.down = nn.linear(hidden, width, { bias = given.bias })
  self.dropout = nn.dropout(given.dropout)
  self._activation = given.activation
end

function TransformerBlock:forward(x, cache)
  local attended, normed = self.attention(self.norm1(x, true), cache), nil
  local norm = self.norm2
  if rawequal(norm.forward, nn.layer_norm.forward) or rawequal(norm.forward, nn.rms_norm.forward) then
    x, normed = norm:add(x, attended, true)
  else  -- a norm of the script's own
    x = x + attended
    normed = norm(x, true)
  end
  local hidden
  if self.up.forward == Linear.forward and self._activation ~= "silu" then
    hidden = self.up(normed, self._activation)
  else  -- an adapter
    hidden = self.up(normed)
    hidden = self._activation == "relu" and hidden:relu() or self._activation == "silu" and hidden:silu()
      or hidden:gelu(self._activation == "gelu_tanh" and "tanh" or nil)
  end
  return x + self.dropout(self.down(hidden))
end

nn.transformer_block = TransformerBlock

---- low-rank adapters (Hu et al., "LoRA", 2021)

local Lora = nn.class("Lora")

function Lora:init(inner, rank, alpha)
  local weight = inner.weight
  local outputs, inputs = weight:size(1), weight:size(2)
  -- Optimizers change f32 and f64 only: for a smaller weight the adapter is f32.
  local dtype = weight.dtype == "f64" and "f64" or "f32"
  self.inner = inner
  self.down = nn.parameter(((flow.rand(rank, inputs) * 2 - 1) / math.sqrt(inputs)):to(weight.device, dtype))
  self.up = nn.parameter(flow.zeros(outputs, rank):to(weight.device, dtype))
  self._scale = alpha / rank
end

function Lora:forward(x)
  local y = self.inner(x)
  return y + (x:linear(self.down):linear(self.up) * self._scale):to(y.dtype)
end

Lora._is_adapter = true

-- The linear layer with the adapter added to its weight, which is rounded once.
function Lora:merged()
  flow.no_grad(function()
    local weight = self.inner.weight
    weight:copy_(weight:to(self.up.dtype) + self.up:matmul(self.down) * self._scale)
  end)
  return self.inner
end

-- The places of modules of a class below `holder`: a list of { module =, name =, holder =, key = }.
local function places_of(class, holder, prefix, places, seen)
  if seen[holder] then return places end
  seen[holder] = true
  for key, field in pairs(holder) do
    if type(field) == "table" and (is_module(field) or not getmetatable(field)) then
      local name = prefix .. tostring(key)
      if is_module(field) and field.forward == class.forward then
        places[#places + 1] = { module = field, name = name, holder = holder, key = key }
      end
      places_of(class, field, name .. ".", places, seen)
    end
  end
  return places
end

-- Stores make(module) at every place of a module; make is called once per module.
local function replace(places, make)
  local made = {}
  for _, place in ipairs(places) do
    made[place.module] = made[place.module] or make(place.module)
    place.holder[place.key] = made[place.module]
  end
end

-- A layer with several names is selected by any of them, and then at all its places.
local function chosen_places(places, targets)
  local chosen, out = {}, {}
  for _, place in ipairs(places) do
    if not targets then chosen[place.module] = true end
    for _, target in ipairs(targets or {}) do
      if place.name:find(target, 1, true) then chosen[place.module] = true end
    end
  end
  for _, place in ipairs(places) do
    if chosen[place.module] then out[#out + 1] = place end
  end
  return out
end

local function check_targets(targets)
  local fits = not targets or type(targets) == "table" and #targets > 0
  for _, target in ipairs(type(targets) == "table" and targets or {}) do fits = fits and type(target) == "string" end
  if not fits then
    error("flow.nn.lora: the option `targets` is a list of parts of names, as { \"attention\" }, not "
      .. (type(targets) == "string" and ("%q"):format(targets) or "such a " .. type(targets)), 3)
  end
end

-- Merging the adapter into a weight that another module shares would change both.
local function check_unshared(model, places)
  local chosen, shared, other = {}, nil, nil
  for _, place in ipairs(places) do chosen[place.module.weight] = place end
  walk(model, "", function(name, tensor, holder)
    local place = chosen[tensor]
    if place and holder ~= place.module then shared, other = place.name, name end
  end, {})
  if shared then
    error("flow.nn.lora: the weight of the linear layer `" .. shared .. "` is `" .. other .. "` too, and an adapter would "
      .. "change both as it is merged: name the layers to adapt with `targets`, without this one", 3)
  end
end

-- Freezes the model and records the places of its trainable tensors, which may be replaced until it is unfrozen.
local function freeze(model)
  local learned = {}
  walk(model, "", function(_, tensor, holder, key)
    if tensor.is_leaf and tensor.requires_grad then learned[#learned + 1] = { holder, key } end
  end, {})
  model:requires_grad_(false)
  model._learned = learned
end

local function unfreeze(module)
  for _, place in ipairs(module._learned or {}) do
    local tensor = place[1][place[2]]
    if flow.is_tensor(tensor) then tensor.requires_grad = true end
  end
  module._learned = nil
end

-- Freezes the model and puts an adapter on every linear layer whose name contains one of `targets` (on all without
-- `targets`): flow.nn.lora(model, { rank = 8, alpha = 16, targets = { "attention" } }).
function nn.lora(model, options)
  local given = check_options("flow.nn.lora", options, { rank = 8, alpha = 16, targets = false }, 3)
  if math.type(given.rank) ~= "integer" or given.rank < 1 then
    error("flow.nn.lora: the option `rank` is a whole number of 1 or more, not " .. tostring(given.rank), 2)
  end
  if type(given.alpha) ~= "number" then
    error("flow.nn.lora: the option `alpha` is a number, not " .. tostring(given.alpha), 2)
  end
  check_targets(given.targets)
  local present = places_of(Lora, model, "", {}, {})[1]
  if present then
    error("flow.nn.lora: this model has adapters already, one is `" .. present.name
      .. "`: add them into the weights with flow.nn.merge_lora(model) first", 2)
  end
  local places = chosen_places(places_of(Linear, model, "", {}, {}), given.targets)
  if #places == 0 then
    error("flow.nn.lora: " .. (given.targets and "no linear layer's name contains one of the targets"
      or "the model has no linear layers in it"), 2)
  end
  check_unshared(model, places)
  freeze(model)
  replace(places, function(linear) return Lora(linear, given.rank, given.alpha) end)
  return model
end

-- Adds the adapters to the weights: the model has its original structure again, with changed weights.
function nn.merge_lora(model)
  replace(places_of(Lora, model, "", {}, {}), function(adapter) return adapter:merged() end)
  walk_modules(model, unfreeze, {})
  return model
end

-- ---- losses: tensors of one number

local function both(name, predicted, expected)
  if not flow.is_tensor(predicted) or not flow.is_tensor(expected) then
    error(name .. " takes two tensors, not a " .. type(predicted) .. " and a " .. type(expected), 3)
  end
  if shape_text(predicted) ~= shape_text(expected) then
    error(name .. ": " .. shape_text(predicted) .. " and " .. shape_text(expected) .. " are of one shape", 3)
  end
end

-- A tensor, even if no gradient is recorded.
local function reduced(name, losses, options)
  local reduction = check_options(name, options, { reduction = "mean" }).reduction
  if reduction ~= "none" and reduction ~= "sum" and reduction ~= "mean" then
    error("a reduction is \"mean\", \"sum\" or \"none\", not \"" .. tostring(reduction) .. "\"", 3)
  end
  if reduction == "none" then return losses end
  local out = reduction == "sum" and losses:sum() or losses:mean()
  return flow.is_tensor(out) and out or flow.full({}, out, losses.dtype)
end

-- Mean loss of rows of logits [n, classes] for labels [n] of 1..classes; options: ignore, reduction.
function nn.cross_entropy(logits, labels, options)
  if not flow.is_tensor(logits) then
    error("flow.nn.cross_entropy takes logits [n, classes] and labels [n], not a " .. type(logits), 2)
  end
  return logits:cross_entropy(labels, options)
end

-- Mean loss of rows of log probabilities [n, classes].
function nn.nll_loss(logs, labels, options)
  return reduced("flow.nn.nll_loss", -logs:gather(2, labels:reshape(-1, 1)):squeeze(2), options)
end

function nn.mse_loss(predicted, expected, options)
  both("flow.nn.mse_loss", predicted, expected)
  return reduced("flow.nn.mse_loss", (predicted - expected):square(), options)
end

function nn.l1_loss(predicted, expected, options)
  both("flow.nn.l1_loss", predicted, expected)
  return reduced("flow.nn.l1_loss", (predicted - expected):abs(), options)
end

-- Logits for targets from 0 to 1: -t log(sigmoid(x)) - (1 - t) log(sigmoid(-x)). Both terms are exact for large |x|,
-- and the gradient is sigmoid(x) - t everywhere.
function nn.bce_with_logits(logits, targets, options)
  both("flow.nn.bce_with_logits", logits, targets)
  local losses = (-logits):softplus() * targets + logits:softplus() * (1 - targets)
  return reduced("flow.nn.bce_with_logits", losses, options)
end

-- Does not store intermediate values of f: backward calls f again.
nn.checkpoint = flow.checkpoint

-- ---- on several ranks

nn.data_parallel = require "flow.nn.data_parallel"

return nn
