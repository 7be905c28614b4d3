-- mode: load
local x = os.clock()  -- expect error: os.clock: the clock cannot be read
