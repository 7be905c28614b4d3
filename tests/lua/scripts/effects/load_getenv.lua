-- mode: load
local x = os.getenv('HOME')  -- expect error: os.getenv: the environment cannot be read
