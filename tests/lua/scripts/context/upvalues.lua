-- mode: script
local flow = require "flow"
local count, list, nested, kept = 0, { 1, 2, 3 }, { deep = { x = 1 } }, { a = 1, b = 2 }
local old = { __index = { hello = "old" } }
local object = setmetatable({}, old)
local function add() count = count + 1; return count end
local function read() return count end
local nan, list_of_functions = 0 / 0, { add }
local t = flow.task("t", function(ctx)
  print(add(), add(), read(), list_of_functions[1]())  -- expect: 1	2	2	3
  print(#list, nested.deep.x, kept.a, kept.b, kept.c, object.hello, nan == nan)  -- expect: 3	1	1	2	nil	old	false
  list[4], list[1] = 4, nil
  nested.deep.x, nested.deep = 5, nil
  kept.a, kept.c, kept.b = nil, 3, "changed"
  setmetatable(object, { __index = { hello = "new" } })
  old.__index.hello = "changed"
  nan, list_of_functions[1] = 1, nil
  print(count)  -- expect: 3
  count = nil
end)
return flow.pipeline("p", {}, function() t() t() end)
-- expect: 1	2	2	3
-- expect: 3	1	1	2	nil	old	false
-- expect: 3
