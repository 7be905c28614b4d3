local function file(name, bytes) flow.fs.write(ctx.dir .. "/" .. name, bytes) return ctx.dir .. "/" .. name end
local function why(f, ...)
  local ok, message = pcall(f, ...)
  message = flow.text.replace(tostring(message), ctx.dir .. "/", "")
  print(ok and "no error" or (message:gsub("^%w+%.lua:%d+: ", "")))
end

local text = flow.text
local path = file("a.txt", "The cat's hat\r\n\r\n\xc3\x89t\xc3\xa9 'quoted' the")
print(flow.json.encode(text.lines(path)))  -- expect: ["The cat's hat","","Été 'quoted' the"]
print(table.concat(text.words(path), "|"))  -- expect: the|cat's|hat|Été|quoted|the
print(table.concat(text.tokens("A-b c' 'd"), "|"))  -- expect: a|b|c|d
print(flow.json.encode(text.histogram(path)))  -- expect: {"cat's":1,"hat":1,"quoted":1,"the":2,"Été":1}
print(flow.json.encode(text.histogram({ "x", "y", "x" })))  -- expect: {"x":2,"y":1}
print(#text.lines(file("empty.txt", "")), #text.lines(file("nl.txt", "\n")))  -- expect: 0	1
print(flow.json.encode(text.split(" a  b\t")), flow.json.encode(text.split("a,,b,", ",")))  -- expect: ["a","b"]	["a","","b",""]
print(#text.split(""), #text.split("", ","), #text.split("a%d%b", "%d%"))  -- expect: 0	1	2
print(text.join({ 1, "b", 2.5 }, "-"), text.join({}) == "", "[" .. text.trim(" \t a b\n") .. "]")  -- expect: 1-b-2.5	true	[a b]
print(text.replace("a.b.c", ".", "%1"), text.starts_with("abc", "ab"), text.ends_with("abc", "bc"))  -- expect: a%1b%1c	true	true
print(text.starts_with("a", "ab"), text.ends_with("", "a"), text.starts_with("a", ""))  -- expect: false	false	true
why(text.split, "a", "")  -- expect: flow.text.split: the separator is empty
why(text.split, 1)  -- expect: flow.text.split takes a string, not a number
why(text.replace, "a", "", "b")  -- expect: flow.text.replace: the text to replace is empty
why(text.join, { "a", {} })  -- expect: flow.text.join: item 2 is a table, not a string or a number
why(text.histogram, { 1 })  -- expect: flow.text.histogram of a list takes a string, not a number
why(text.lines, ctx.dir .. "/none")  -- expect: flow.text.lines: cannot open `none`: No such file or directory
