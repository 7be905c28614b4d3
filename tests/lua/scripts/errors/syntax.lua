-- mode: load
local x = = 3  -- expect error: unexpected symbol near '='
