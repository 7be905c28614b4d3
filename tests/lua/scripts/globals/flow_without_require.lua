-- mode: load
local t = flow.task("t", print)  -- expect error: write `local flow = require "flow"`
