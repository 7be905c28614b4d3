-- mode: load
local x = os.exit(0)  -- expect error: os.exit would end the process
