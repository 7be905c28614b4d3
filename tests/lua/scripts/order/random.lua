local a, b = math.random(1000000), math.random()
math.randomseed(5)
local c = math.random(1000000)
math.randomseed(5)
print(c == math.random(1000000))  -- expect: true
math.randomseed()
print(a == math.random(1000000), b == math.random())  -- expect: true	true
print(pcall(math.random, 2, 1))  -- expect: false	bad argument #2 to 'math.random' (interval is empty)
for i = 1, 100 do local x = math.random(3, 5); assert(x >= 3 and x <= 5) end
print(math.type(math.random(0)), math.random(7, 7))  -- expect: integer	7
