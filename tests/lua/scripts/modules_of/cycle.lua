-- mode: load
local ok, message = pcall(require, "one")
print(message)  -- expect: two.lua:1: modules require each other in a cycle: one (cycle.lua:2) → two (one.lua:1) → one; move what both need into a third module
