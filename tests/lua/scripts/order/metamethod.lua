local t = setmetatable({}, { __pairs = function(t) return function(_, k) if not k then return 1, "one" end end, t, nil end })
for k, v in pairs(t) do print(k, v) end  -- expect: 1	one
for i, v in ipairs(setmetatable({}, { __index = function(_, i) if i < 3 then return i * 10 end end })) do io.write(i, "=", v, " ") end
print()  -- expect: 1=10 2=20 
local names = {}
for k in pairs(coroutine) do names[#names + 1] = k end
print(table.concat(names, " "))  -- expect: close create isyieldable resume running status wrap yield
