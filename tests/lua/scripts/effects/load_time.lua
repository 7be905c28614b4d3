-- mode: load
local x = os.time()  -- expect error: os.time: the clock cannot be read
