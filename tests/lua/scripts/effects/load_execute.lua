-- mode: load
local x = os.execute('ls')  -- expect error: os.execute: no program can be started
