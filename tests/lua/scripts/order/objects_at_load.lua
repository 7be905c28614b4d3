-- mode: load
local t = { [{}] = 1 }
for k in pairs(t) do end  -- expect error: keys that are objects
