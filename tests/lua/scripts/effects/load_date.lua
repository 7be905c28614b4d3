-- mode: load
local x = os.date()  -- expect error: os.date: the clock cannot be read
