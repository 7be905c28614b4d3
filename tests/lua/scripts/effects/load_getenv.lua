-- mode: load
local x = os.getenv('HOME')  -- expect error: os.getenv: there is no environment
