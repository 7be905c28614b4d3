-- mode: script
local flow = require "flow"
_G.rate = 3
local t = flow.task("t", function(ctx) end)
return flow.pipeline("p", {}, function()
  rate = 4  -- expect error: the pipeline's body sets the global `rate`
  t()
end)
