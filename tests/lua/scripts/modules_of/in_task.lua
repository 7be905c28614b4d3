-- mode: script
local flow = require "flow"
local plain = require "plain"  -- expect: plain loads	plain	plain.lua
local t = flow.task("t", function(ctx)
  local plain = require "plain"
  print(plain.next(), plain.next())  -- expect: 1	2
  require "lib"  -- expect error: require("lib") inside a task: the script has not loaded this module
end)
return flow.pipeline("p", {}, function() t() end)
