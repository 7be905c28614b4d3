local ran = false
do local x = setmetatable({}, { __gc = function() ran = true end }) end
collectgarbage()
collectgarbage()
print(ran)  -- expect: false
local mt = { __gc = print, __index = { a = 1 } }
print(setmetatable({}, mt).a, mt.__gc == print)  -- expect: 1	true
