-- mode: load
local x = loadfile('x.lua')  -- expect error: loadfile reads a file
