-- mode: load
local x = io.lines('x')  -- expect error: io.lines: files cannot be accessed
