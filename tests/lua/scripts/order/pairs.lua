local function show(t)
  local out = {}
  for k, v in pairs(t) do out[#out + 1] = tostring(k) .. "=" .. tostring(v) end
  print(table.concat(out, " "))
end
show { 10, 20, 30 }  -- expect: 1=10 2=20 3=30
show { b = 1, a = 2, c = 3 }  -- expect: a=2 b=1 c=3
show { "x", "y", z = 1, [3.5] = 2, [-1] = 3, [true] = 4, [false] = 5, [10] = 6 }  -- expect: 1=x 2=y -1=3 3.5=2 10=6 z=1 false=5 true=4
show { [2] = "b", [1] = "a", [3] = "c", [2.5] = "m" }  -- expect: 1=a 2=b 3=c 2.5=m
show {}  -- expect: 
local t = { a = 1, b = 2, c = 3 }
for k in pairs(t) do t.b = nil; io.write(k, " ") end
print()  -- expect: a c 
local list = { 1, 2, 3, 4 }
for i in pairs(list) do list[2] = nil; io.write(i, " ") end
print()  -- expect: 1 3 4 
local big = {}
for i = 1000, 1, -1 do big["k" .. i] = i end
local last, count = "", 0
for k in pairs(big) do assert(last < k); last = k; count = count + 1 end
print(count)  -- expect: 1000
