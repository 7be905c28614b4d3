local function file(name, bytes) flow.fs.write(ctx.dir .. "/" .. name, bytes) return ctx.dir .. "/" .. name end
local function why(f, ...)
  local ok, message = pcall(f, ...)
  message = flow.text.replace(tostring(message), ctx.dir .. "/", "")
  print(ok and "no error" or (message:gsub("^%w+%.lua:%d+: ", "")))
end

local json = flow.json
print(json.encode({ b = 1, a = { 1, 2.5, "x\n", true, flow.null } }))  -- expect: {"a":[1,2.5,"x\n",true,null],"b":1}
print((json.encode({ a = { 1 } }, 2):gsub("\n", "|")))  -- expect: {|  "a": [|    1|  ]|}
local value = json.decode('{"a":[1,2.0,null],"b":"\\u00e9\\ud83d\\ude00","n":-9223372036854775808}')
print(math.type(value.a[1]), math.type(value.a[2]), value.a[3] == flow.null)  -- expect: integer	float	true
print(value.b, value.n == math.mininteger)  -- expect: é😀	true
why(json.encode, print)  -- expect: flow.json.encode: cannot take a function at value: what crosses an edge is nil, a boolean, a number, a string, a table of these, a tensor or a file
why(json.encode, {}, 17)  -- expect: flow.json.encode indents by 0..16 spaces, not by 17
why(json.decode)  -- expect: flow.json.decode takes a string, not nil
for _, text in ipairs { "", "{", "[1,]", '{"a":1,}', "01", "+1", "nul", '"\\x"', '"\\ud800"', "[1] 2", "'a'", '"a\nb"', "1e", "NaN",
    ("["):rep(100000) } do
  local ok, message = pcall(json.decode, text)
  if ok or not message:find("flow.json.decode: this ", 1, true) then print(text:sub(1, 20), message) end
end
local path = file("a.jsonl", '{"a":1}\n\n[2]\r\nnull\n')
local list = flow.data.jsonl(path)
print(#list, list[1].a, list[2][1], list[3] == flow.null)  -- expect: 3	1	2	true
for _, name in ipairs { "b.jsonl", "b.jsonl.gz" } do
  flow.data.write_jsonl(ctx.dir .. "/" .. name, list)
  print(json.encode(flow.data.jsonl(ctx.dir .. "/" .. name)))
end
-- expect: [{"a":1},[2],null]
-- expect: [{"a":1},[2],null]
print(flow.fs.read(ctx.dir .. "/b.jsonl.gz"):byte(1, 2))  -- expect: 31	139
why(flow.data.jsonl, file("c.jsonl", '{"a":1}\n{"a":\n'))  -- expect: flow.data.jsonl: c.jsonl:2: this is no JSON: line 1, column 6: syntax error while parsing value - unexpected end of input; expected '[', '{', or a literal
why(flow.data.write_jsonl, path, { 1, { f = print } })  -- expect: flow.data.write_jsonl: cannot take a function at item 2.f: what crosses an edge is nil, a boolean, a number, a string, a table of these, a tensor or a file
why(flow.data.write_jsonl, path, "x")  -- expect: flow.data.write_jsonl takes a table, not a string
