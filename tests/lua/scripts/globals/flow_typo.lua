-- mode: load
local flow = require "flow"
flow.tsak("x", print)  -- expect error: flow has no `tsak` (did you mean `task`?)
