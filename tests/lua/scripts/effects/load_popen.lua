-- mode: load
local x = io.popen('ls')  -- expect error: io.popen: no program is started
