-- mode: load
local x = 1
x = strng.format("%d", x)  -- expect error: undefined global `strng` (did you mean `string`?)
