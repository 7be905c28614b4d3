-- mode: load
local x = io.open('x')  -- expect error: io.open: files cannot be accessed
