-- Uses a task that the host program defines in C++.
local flow = require "flow"

local half = flow.native("half")

local describe = flow.task("describe", function(ctx, size)
  return { size = size, text = size.width .. " x " .. size.height }
end)

return flow.pipeline("embedded", {
  width  = flow.param.int { default = 320, min = 1 },
  height = flow.param.int { default = 200, min = 1 },
}, function(p)
  return describe(half { width = p.width, height = p.height })
end)
