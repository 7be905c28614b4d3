-- mode: load
local x = os.remove('x')  -- expect error: os.remove: there is no file access
