local flow = require "flow"
print(getmetatable(flow.nn.relu()))  -- expect: false
print(pcall(function() flow.nn.linear = nil end))  -- expect: false	stdlib_class.lua:3: `flow.nn.linear` can't be set: libraries are read-only once the script has loaded; use a local
