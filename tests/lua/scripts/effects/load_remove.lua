-- mode: load
local x = os.remove('x')  -- expect error: os.remove: files cannot be accessed
