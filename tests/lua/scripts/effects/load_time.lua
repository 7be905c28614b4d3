-- mode: load
local x = os.time()  -- expect error: os.time: there is no clock
