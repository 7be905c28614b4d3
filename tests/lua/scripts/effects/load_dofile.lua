-- mode: load
local x = dofile('x.lua')  -- expect error: dofile reads a file
