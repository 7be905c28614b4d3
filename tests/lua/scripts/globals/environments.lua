local f = load("return x, print ~= nil", "chunk", "t", { x = 5, print = print })
print(f())  -- expect: 5	true
print(load("return rate2", "chunk", "t", _G) ~= nil)  -- expect: true
print(pcall(load("return rate2", "=chunk", "t", _G)))  -- expect: false	chunk:1: undefined global `rate2`; a variable of a file begins with `local`
print(load("\27Lua"))  -- expect: nil	attempt to load a binary chunk (mode is 't')
local _ENV = { print = print }
print(y)  -- expect: nil
