-- The smallest pipeline: two tasks, the second takes what the first returned.
--
--   flow run examples/hello.lua
--   flow run examples/hello.lua --param who=you
local flow = require "flow"

-- A task is a named function. `ctx` knows about the run: ctx:log("…"), ctx.dir, ctx.attempt and more.
local greet = flow.task("greet", function(ctx, who) return "hello, " .. who end)
local shout = flow.task("shout", function(ctx, text) return text:upper() .. "!" end)

-- The body runs first and runs no task: calling one there adds it to the graph and returns a handle to its result.
return flow.pipeline("hello", {
  who = flow.param.string { default = "world", help = "names to greet" },
}, function(p)
  return shout(greet(p.who))
end)
