print(next({}))  -- expect: nil
print(next({ 5 }))  -- expect: 1	5
print(next({ b = 1, a = 2 }))  -- expect: a	2
local function walk(t, change)
  local out = {}
  local k, v = next(t)
  while k ~= nil do
    out[#out + 1] = tostring(k)
    if change then change(t, k) end
    k, v = next(t, k)
  end
  print(table.concat(out, " "))
end
walk { 1, 2, 3, x = 1, a = 2, [-5] = 0 }  -- expect: 1 2 3 -5 a x
walk({ 1, 2, 3, x = 1, a = 2, [-5] = 0 }, function(t, k) t[k] = nil end)  -- expect: 1 2 3 -5 a x
walk({ 1, 2, 3, 4, [-5] = 0 }, function(t, k) if k == 1 then t[1] = nil; t[2] = nil end end)  -- expect: 1 -5 3 4
walk({ a = 1, b = 2, c = 3, d = 4 }, function(t, k) t.c = nil end)  -- expect: a b d
walk({ a = 1, b = 2, c = 3, d = 4 }, function(t, k) t[k] = nil end)  -- expect: a b c d
local nested = { b = {}, a = {} }
local out = {}
for k in next, nested do for j in next, { y = 1, x = 2 } do out[#out + 1] = k .. j end end
print(table.concat(out, " "))  -- expect: ax ay bx by
local set, count = {}, 0
for i = 1, 50 do set[{}] = i end
local k = next(set)
while k do count = count + 1; set[k] = nil; k = next(set, k) end
print(count, next(set))  -- expect: 50	nil
