-- Buckets of gradients that are reduced together, for flow.nn.data_parallel.
local flow = require "flow"

local GradientBucket = {}
GradientBucket.__index = GradientBucket

-- The type in which gradients of `dtype` are sent: bf16 compresses wider types.
local function travels_as(dtype, compressed)
  if compressed and (dtype == "f32" or dtype == "f64") then return compressed end
  return dtype
end

local function bytes_of(dtype) return dtype == "f64" and 8 or dtype == "f32" and 4 or 2 end

local function fill(bucket, parameters)
  local count = bucket.count
  bucket.flat = flow.zeros(count + #bucket.places, { dtype = bucket.dtype, device = bucket.device })
  bucket.parameters, bucket.views, bucket.used, bucket.place_of = {}, {}, {}, {}
  if bucket.share then
    bucket.residual = flow.zeros(count, { dtype = bucket.dtype, device = bucket.device })
    bucket.residual_views = {}
    bucket.sent = math.max(1, math.ceil(bucket.share * count))
  end
  local at = 1
  for place, i in ipairs(bucket.places) do
    local parameter = parameters[i]
    bucket.parameters[i] = parameter
    bucket.views[i] = bucket.flat:narrow(1, at, parameter:count()):reshape(parameter.shape)
    if bucket.share then
      bucket.residual_views[i] = bucket.residual:narrow(1, at, parameter:count()):reshape(parameter.shape)
    end
    bucket.place_of[i] = place
    at = at + parameter:count()
  end
  bucket.gradients = bucket.flat:narrow(1, 1, count)
  bucket.flags = bucket.flat:narrow(1, count + 1, #bucket.places)
  return bucket
end

-- Buckets of about `bytes` each for the parameters in `order`, a list of indices.
local function make(parameters, order, bytes, compressed, share)
  local open, out = {}, {}
  for _, i in ipairs(order) do
    local parameter = parameters[i]
    local dtype = travels_as(parameter.dtype, compressed)
    local kind = dtype .. " " .. parameter.device
    local bucket = open[kind]
    if not bucket or bucket.count * bytes_of(dtype) >= bytes then
      bucket = setmetatable({ dtype = dtype, device = parameter.device, share = share, count = 0, places = {} }, GradientBucket)
      open[kind] = bucket
      out[#out + 1] = bucket
    end
    bucket.places[#bucket.places + 1] = i
    bucket.count = bucket.count + parameter:count()
  end
  for _, bucket in ipairs(out) do fill(bucket, parameters) end
  return out
end

function GradientBucket:copy_in(i)
  local gradient = self.parameters[i].grad
  self.used[self.place_of[i]] = gradient and 1 or 0
  if gradient then self.views[i]:copy_(gradient) else self.views[i]:zero_() end
  -- The residual of a parameter that this rank does not use is kept: it could be lost if no rank uses it.
  if gradient and self.share then
    self.views[i]:add_(self.residual_views[i])
    self.residual_views[i]:zero_()
  end
end

function GradientBucket:start_reduce(comm)
  self.flags:copy_(flow.tensor(self.used, { dtype = self.dtype, device = self.device }))
  if not self.share then
    self.handle = comm:all_reduce(self.flat, "mean", { async = true })
    return
  end
  -- The numbers that are not sent are kept, and added to the next gradients.
  local _, index = self.gradients:abs():topk(self.sent)
  local values = self.gradients:gather(1, index)
  self.residual:add_(self.gradients:scatter_add(1, index, -values))
  self.index = comm:all_gather(index, { async = true })
  self.values = comm:all_gather(values, { async = true })
  self.handle = comm:all_reduce(self.flags, "max", { async = true })
end

-- In the order of ranks, so that all ranks compute the same bits.
local function add_sent(self, comm)
  local index, values = self.index:wait(), self.values:wait()
  local sum = flow.zeros_like(self.gradients)
  for rank = 0, comm.ranks - 1 do
    local first = rank * self.sent + 1
    sum = sum:scatter_add(1, index:narrow(1, first, self.sent), values:narrow(1, first, self.sent))
  end
  self.gradients:copy_(sum / comm.ranks)
  self.index, self.values = nil, nil
end

function GradientBucket:copy_out(comm)
  self.handle:wait()
  self.handle = nil
  if self.share then add_sent(self, comm) end
  local used = self.flags:to("f32", "cpu"):table()
  for place, i in ipairs(self.places) do
    local parameter = self.parameters[i]
    if used[place] > 0 then
      if parameter.grad then
        parameter.grad:copy_(self.views[i])
      else
        parameter.grad = self.views[i]:to(parameter.dtype):clone()
      end
    end
  end
end

return { make = make }
