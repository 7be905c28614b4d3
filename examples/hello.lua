-- The smallest pipeline: two tasks, the second takes what the first returned.
--   flow run examples/hello.lua --param who=you
local flow = require "flow"

local greet = flow.task("greet", function(ctx, who) return "hello, " .. who end)
local shout = flow.task("shout", function(ctx, text) return text:upper() .. "!" end)

return flow.pipeline("hello", {
  who = flow.param.string { default = "world", help = "whom to greet" },
}, function(p)
  return shout(greet(p.who))
end)
