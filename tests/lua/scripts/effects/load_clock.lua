-- mode: load
local x = os.clock()  -- expect error: os.clock: there is no clock
