local a, b = {}, {}
local t = { [a] = 1, [b] = 2, z = 3, 4 }
local first = {}
for k, v in pairs(t) do first[#first + 1] = type(k) end
print(table.concat(first, " "))  -- expect: number string table table
