print(pcall(error, "x"))  -- expect: false	x
print(pcall(error, { 1 }))  -- expect: false	table: 0x1
print(xpcall(function() error("deep", 0) end, function(m) return "handled " .. m end))  -- expect: false	handled deep
print(select("#", pcall(function() return 1, nil, nil end)))  -- expect: 4
local co = coroutine.create(function(a) local b = coroutine.yield(a + 1); return b * 2 end)
print(coroutine.resume(co, 1))  -- expect: true	2
print(coroutine.resume(co, 10))  -- expect: true	20
print(coroutine.resume(co))  -- expect: false	cannot resume dead coroutine
local w = coroutine.wrap(function() for i = 1, 2 do coroutine.yield(i) end error("end", 0) end)
print(w(), w(), pcall(w))  -- expect: 1	2	false	end
print(pcall(coroutine.wrap(function() pcall(coroutine.yield, 7) end)))  -- expect: true	7
local function deep(n) return 1 + deep(n + 1) end
local ok, message = pcall(deep, 1)
print(ok, (message:match("stack overflow")))  -- expect: false	stack overflow
print(pcall(string.rep, "x", -1))  -- expect: true	
