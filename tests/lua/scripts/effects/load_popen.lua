-- mode: load
local x = io.popen('ls')  -- expect error: io.popen: no program can be started
