-- mode: load
local x = os.date()  -- expect error: os.date: there is no clock
