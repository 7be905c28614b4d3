local t = { 3, 1, 2 }
table.sort(t)
print(table.concat(t, " "))  -- expect: 1 2 3
table.sort(t, function(a, b) return a > b end)
print(table.concat(t, " "))  -- expect: 3 2 1
local items = {}
for i = 1, 40 do items[i] = { key = i % 3, at = i } end
table.sort(items, function(a, b) return a.key < b.key end)
local stable = true
for i = 2, 40 do
  local a, b = items[i - 1], items[i]
  if a.key > b.key or (a.key == b.key and a.at > b.at) then stable = false end
end
print(stable)  -- expect: true
print(pcall(table.sort, { 1, 2, 2, 1 }, function(a, b) return a <= b end))  -- expect: false	sort.lua:15: invalid order function for sorting: it returns true for two items in both orders; write `<`, not `<=`
print(pcall(table.sort, { 1, "x" }))  -- expect: false	attempt to compare string with number
print(select("#", table.sort({})))  -- expect: 0
local words = { "b", "a\0z", "a", "B" }
table.sort(words)
print(#words[3], words[1])  -- expect: 3	B
