-- mode: load
local x = io.lines('x')  -- expect error: io.lines: there is no file access
