-- mode: script
local flow = require "flow"
_G.rate = 3
local t = flow.task("t", function(ctx)
  print(rate)  -- expect: 3
  rate = 4  -- expect error: the global `rate` can't be set in a task
end)
return flow.pipeline("p", {}, function() t() end)
