-- mode: load
local x = io.output('x')  -- expect error: io.output: there is no file access
