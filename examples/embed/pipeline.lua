-- Uses a task and operations on tensors that the host program defines in C++ and C.
local flow = require "flow"

local half = flow.native("half")

local describe = flow.task("describe", function(ctx, size)
  return { size = size, text = size.width .. " x " .. size.height }
end)

local smooth = flow.task("smooth", function(ctx, library, size)
  local ops = flow.operations(library)
  local means = ops.moving_mean(flow.arange(1, size.width):to("f32"), 4)
  return means[size.width]
end)

return flow.pipeline("embedded", {
  width  = flow.param.int { default = 320, min = 1 },
  height = flow.param.int { default = 200, min = 1 },
}, function(p)
  local size = half { width = p.width, height = p.height }
  return { size = describe(size), last = smooth(flow.native_operations("filters"), size) }
end)
