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
-- Foreign JSON is read literally, whatever its keys begin with, and JSON written here is read back.
for _, text in ipairs { '{"a":{"$ref":"#/definitions/x"}}', '{"_id":{"$oid":"507f"},"at":{"$date":"2020-01-01"}}', '{"$bytes":12}',
    '{"$bytes":"not base64!"}', '{"$bytes":"aGVsbG8="}', '{"$map":"world"}', '{"$map":[]}', '{"$map":[["a",1]]}', '{"$tensor":{"x":1}}' } do
  local read = json.decode(text)
  local written = json.encode(read)
  print(written == text or written, json.encode(json.decode(written)) == written)
end
-- expect: true	true
-- expect: true	true
-- expect: {"$map":[["$bytes",12]]}	true
-- expect: {"$map":[["$bytes","not base64!"]]}	true
-- expect: {"$map":[["$bytes","aGVsbG8="]]}	true
-- expect: {"$map":[["$map","world"]]}	true
-- expect: {"$map":[["$map",[]]]}	true
-- expect: {"$map":[["$map",[["a",1]]]]}	true
-- expect: true	true
print(json.decode(json.encode { 1, 2, a = 3 }).a, json.decode(json.encode { b = "\255" }).b == "\255", json.decode(json.encode { [10] = "x" })[10])  -- expect: 3	true	x
-- Integers beyond 64 bits keep their digits; one that a float represents exactly becomes a float.
for _, text in ipairs { "12345678901234567890", "18446744073709551615", "-9223372036854775809", "9223372036854775808", "123456789012345680000", "1e20" } do
  local n = json.decode(text)
  print(type(n), math.type(n) or n)
end
-- expect: string	12345678901234567890
-- expect: string	18446744073709551615
-- expect: string	-9223372036854775809
-- expect: number	float
-- expect: number	float
-- expect: number	float
why(json.decode, '{"a":1}\0garbage')  -- expect: flow.json.decode: this is not JSON: line 1, column 8: a NUL byte
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
why(flow.data.jsonl, file("c.jsonl", '{"a":1}\n{"a":\n'))  -- expect: flow.data.jsonl: c.jsonl:2: this is not JSON: line 1, column 6: syntax error while parsing value - unexpected end of input; expected '[', '{', or a literal
why(flow.data.write_jsonl, path, { 1, { f = print } })  -- expect: flow.data.write_jsonl: cannot take a function at item 2.f: what crosses an edge is nil, a boolean, a number, a string, a table of these, a tensor or a file
why(flow.data.write_jsonl, path, "x")  -- expect: flow.data.write_jsonl takes a table, not a string
