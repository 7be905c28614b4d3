-- mode: load
function string.trim(s) return (s:gsub("^%s+", ""):gsub("%s+$", "")) end
print(("  x "):trim(), string.trim(" y"))  -- expect: x	y
string.trim = function(s) return "other" end
print(("  x "):trim())  -- expect: other
print = print
getmetatable("").__index = string
getmetatable("").__call = function(s, n) return s:rep(n) end
print(("ab")(3))  -- expect: ababab
