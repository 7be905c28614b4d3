-- mode: load
local flow = require "flow"
flow.set_float32_matmul_precision("high")  -- expect error: flow.set_float32_matmul_precision is called in a task: its results depend on it, and so does its key
