-- Trains one model on all ranks of a task, each with its own part of every batch: after loss:backward() the gradients
-- are the mean over the ranks, with the same bits on all of them.
--
--   local model = flow.nn.data_parallel(net, ctx.comm)
--   opt:zero_grad(); flow.nn.cross_entropy(model(x), y):backward(); opt:step()
--
-- Gradients are reduced in buckets while backward computes the rest. The reduction of a bucket starts when its
-- gradients are complete and all buckets before it have started, so every rank starts them in the same order. After the
-- gradients a bucket has one flag per parameter, above 0 if a rank has a gradient of it: a parameter that no rank used
-- gets no gradient.
local flow = require "flow"
local buckets = require "flow.nn.buckets"

local MIB = 1 << 20
local known = { bucket = true, compression = true }

local function read_options(options, level)
  if options ~= nil and type(options) ~= "table" then
    error("flow.nn.data_parallel takes its options as a table, { bucket = " .. 25 * MIB .. " }, not a " .. type(options),
      level)
  end
  for name in pairs(options or {}) do
    if not known[name] then
      error("flow.nn.data_parallel has no option `" .. tostring(name) .. "`: there are bucket and compression", level)
    end
  end
  local bytes = options and options.bucket or 25 * MIB
  if math.type(bytes) ~= "integer" or bytes < 1 then
    error("flow.nn.data_parallel: the option `bucket` is a number of bytes, 1 or more, not " .. tostring(bytes), level)
  end
  local compression = options and options.compression
  local share = type(compression) == "table" and compression.top_k
  local is_share = type(share) == "number" and share > 0 and share <= 1
  if compression ~= nil and compression ~= "bf16" and not is_share then
    error("flow.nn.data_parallel: the option `compression` is \"bf16\" or { top_k = 0.01 }, a share of the numbers", level)
  end
  return bytes, compression == "bf16" and "bf16" or nil, share or nil
end

-- Ranks with different models would add unrelated numbers.
local function check_alike(model, comm, level)
  local own = {}
  for i, each in ipairs(model:named_tensors()) do
    own[i] = each.name .. " " .. each.tensor.dtype .. " [" .. table.concat(each.tensor.shape, ", ") .. "]"
  end
  for rank, theirs in ipairs(comm:all_gather(table.concat(own, "\n"))) do
    if theirs ~= table.concat(own, "\n") then
      error("flow.nn.data_parallel: the models of rank " .. comm.rank .. " and rank " .. rank - 1
        .. " have different parameters: make the same model on all ranks", level)
    end
  end
end

local GradientReducer = {}
GradientReducer.__index = GradientReducer

-- The order in which the first backward will complete the parameters, from rank 0's graph; unreached parameters come
-- last. It is the same in every attempt: between nodes, the position of a number in a bucket decides how its sum is
-- rounded.
function GradientReducer:arrange()
  local order, there = self.comm:broadcast(self.order), {}
  for _, i in ipairs(order) do there[i] = true end
  for i = #self.parameters, 1, -1 do
    if not there[i] then order[#order + 1] = i end
  end
  self.buckets = buckets.make(self.parameters, order, self.bytes, self.dtype, self.share)
  self.bucket_of = {}
  for _, bucket in ipairs(self.buckets) do
    for _, i in ipairs(bucket.places) do self.bucket_of[i] = bucket end
  end
  self:begin()
end

function GradientReducer:begin()
  self.taken, self.next = {}, 1
  for _, bucket in ipairs(self.buckets) do bucket.missing = #bucket.places end
end

function GradientReducer:mark_ready(i)
  if self.taken[i] then
    error("the gradients of this flow.nn.data_parallel are partly reduced, because the previous backward failed. Let the "
      .. "attempt fail, so that the next one continues from its checkpoint", 4)
  end
  if not self.buckets then self:arrange() end
  self.taken[i] = true
  local bucket = self.bucket_of[i]
  bucket:copy_in(i)
  bucket.missing = bucket.missing - 1
  while self.next <= #self.buckets and self.buckets[self.next].missing == 0 do
    self.buckets[self.next]:start_reduce(self.comm)
    self.next = self.next + 1
  end
end

function GradientReducer:finish()
  for i in ipairs(self.parameters) do
    if not self.taken[i] then self:mark_ready(i) end
  end
  for _, bucket in ipairs(self.buckets) do bucket:copy_out(self.comm) end
  if self.buffers[1] then self.comm:broadcast(self.buffers) end
  self:begin()
end

local function make_reducer(model, comm, bytes, dtype, share)
  local self = setmetatable({ comm = comm, bytes = bytes, dtype = dtype, share = share, is_quiet = false,
    taken = {} }, GradientReducer)
  self.parameters, self.buffers = model:parameters(), {}
  local all = {}
  for _, each in ipairs(model:named_tensors()) do
    all[#all + 1] = each.tensor
    -- A frozen parameter stays unchanged: only buffers are copied from rank 0 after each backward.
    if not each.tensor.is_parameter then self.buffers[#self.buffers + 1] = each.tensor end
  end
  flow.no_grad(function() comm:broadcast(all) end)
  flow.gradient_hook(self.parameters,
    function(i) if not self.is_quiet then self:mark_ready(i) end end,
    function() if not self.is_quiet then self:finish() end end,
    function(order) self.order = order end)
  return self
end

-- A module that forwards all other fields and methods to the model that it wraps.
local DataParallel = { __name = "DataParallel" }
local own = {}

DataParallel.__index = function(self, key)
  local method = own[key]
  if method ~= nil then return method end
  return rawget(self, "_model")[key]
end
DataParallel.__newindex = function(self, key, value) rawget(self, "_model")[key] = value end
DataParallel.__pairs = function(self) return pairs(rawget(self, "_model")) end
DataParallel.__call = function(self, ...) return rawget(self, "_model")(...) end

function own:forward(...) return rawget(self, "_model"):forward(...) end

-- A backward inside f only accumulates this rank's gradients; the next one outside reduces the sums.
function own:no_sync(f, ...)
  local reducer = rawget(self, "_reducer")
  if not reducer then return f(...) end
  local before = reducer.is_quiet
  reducer.is_quiet = true
  local results = table.pack(pcall(f, ...))
  reducer.is_quiet = before
  if not results[1] then error(results[2], 0) end
  return table.unpack(results, 2, results.n)
end

function own.to()
  error("call model:to before flow.nn.data_parallel: it reduces the gradients of the tensors that the "
    .. "model had at that time", 2)
end

function own.requires_grad_()
  error("call model:requires_grad_ before flow.nn.data_parallel: it reduces the gradients that were "
    .. "wanted at that time", 2)
end

return function(model, comm, options)
  if type(model) ~= "table" or rawget(model, "__is_module") ~= true then
    error("flow.nn.data_parallel takes a model, ctx.comm and options, not a " .. type(model), 2)
  end
  if type(comm) ~= "userdata" then
    error("flow.nn.data_parallel takes a model and ctx.comm, not a " .. type(comm), 2)
  end
  local bytes, dtype, share = read_options(options, 3)
  local reducer
  if comm.ranks > 1 then
    check_alike(model, comm, 3)
    reducer = make_reducer(model, comm, bytes, dtype, share)
  end
  return setmetatable({ __is_module = true, _model = model, _reducer = reducer }, DataParallel)
end
