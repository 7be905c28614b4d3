local function file(name, bytes) flow.fs.write(ctx.dir .. "/" .. name, bytes) return ctx.dir .. "/" .. name end
local function why(f, ...)
  local ok, message = pcall(f, ...)
  message = flow.text.replace(tostring(message), ctx.dir .. "/", "")
  print(ok and "no error" or (message:gsub("^%w+%.lua:%d+: ", "")))
end

local t, json = flow.table, flow.json.encode
print(t.sum({ 1, 2, 3.5 }), json(t.sum({ { a = 1, b = 2 }, { a = 3 } })), #t.sum({}))  -- expect: 6.5	{"a":4,"b":2}	0
print(t.sum({ flow.tensor { 1, 2 }, flow.tensor { 3, 4 } })[2])  -- expect: 6
print(json(t.map({ 1, 2, x = 3 }, function(v, k) return tostring(k) .. v end)) == json { "11", "22", x = "x3" })  -- expect: true
print(json(t.filter({ 1, 2, 3, 4 }, function(v) return v % 2 == 0 end)))  -- expect: [2,4]
print(json(t.filter({ a = 1, b = 2 }, function(v) return v > 1 end)))  -- expect: {"b":2}
print(t.reduce({ "b", "a", z = "c" }, function(all, v, k) return all .. k .. v end, ">"))  -- expect: >1b2azc
print(json(t.keys({ "x", b = 1, a = 2 })), json(t.values({ "x", b = 1, a = 2 })))  -- expect: [1,"a","b"]	["x",2,1]
print(json(t.merge({ a = 1, b = 2 }, { b = 3 }, {})))  -- expect: {"a":1,"b":3}
local original = { 1, { 2 } }
local copy = t.copy(original)
copy[2][1] = 9
print(original[2][1], copy[2][1])  -- expect: 2	9
local pairs_of = t.sorted({ { 2, "a" }, { 1, "b" }, { 2, "c" }, { 1, "d" } }, function(a, b) return a[1] < b[1] end)
print(pairs_of[1][2] .. pairs_of[2][2] .. pairs_of[3][2] .. pairs_of[4][2])  -- expect: bdac
print(json(t.sorted({ 3, 1, 2 })), t.count({ 1, nil, 3, x = 1 }), t.contains({ a = 2 }, 2), t.contains({}, nil))  -- expect: [1,2,3]	3	true	false
print(json(t.slice({ 1, 2, 3, 4 }, 2, 3)), json(t.slice({ 1, 2 }, 0)), #t.slice({ 1 }, 5, 9))  -- expect: [2,3]	[1,2]	0
print(json(t.range(3)), json(t.range(2, 4)), #t.range(0), #t.range(5, 4))  -- expect: [1,2,3]	[2,3,4]	0	0
print(#t.range(math.maxinteger, math.mininteger), t.range(math.maxinteger, math.maxinteger)[1] == math.maxinteger)  -- expect: 0	true
why(t.range, 1, 1 << 40)  -- expect: flow.table.range: 1..1099511627776 has more than 268435456 items
why(t.sum, { 1, "x" })  -- expect: flow.table.sum: item 2 is a string; the first is a number
why(t.sum, { true })  -- expect: flow.table.sum takes numbers, tensors or tables; item 1 is a boolean
why(t.sum, { { a = 1 }, { a = "x" } })  -- expect: flow.table.sum: `a` of item 2 is a string, not a number
why(t.sum, { { a = {} } })  -- expect: flow.table.sum: `a` of item 1 is a table, not a number
why(t.map, { 1 })  -- expect: flow.table.map takes a function, not nil
why(t.keys, 1)  -- expect: flow.table.keys takes a table, not a number
local cycle = {}
cycle.self = cycle
why(t.copy, cycle)  -- expect: flow.table.copy: tables nest deeper than 200, or one contains itself
why(t.sorted, { 1, "a" })  -- expect: attempt to compare string with number
