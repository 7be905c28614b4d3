-- mode: load
local x = io.output('x')  -- expect error: io.output: files cannot be accessed
