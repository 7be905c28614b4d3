-- mode: load
local x = io.open('x')  -- expect error: io.open: there is no file access
