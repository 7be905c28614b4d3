-- mode: load
local flow = require "flow"
flow.task = nil  -- expect error: `flow.task` belongs to the library
