-- mode: load
local ok, message = pcall(require, "broken")
print(message)  -- expect: broken.lua:1: unexpected symbol near '='
