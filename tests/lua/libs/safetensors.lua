local function at(name) return ctx.dir .. "/" .. name end
local function whole()
  for _, name in ipairs(flow.fs.list(ctx.dir)) do if name:find(".tmp-", 1, true) then return name end end
  return true
end
local function why(f, ...)
  local ok, message = pcall(f, ...)
  message = flow.text.replace(tostring(message), ctx.dir .. "/", "")
  print(ok and "no error" or (message:gsub("^%w+%.lua:%d+: ", "")))
end
local function shown(x) return x.dtype .. " " .. flow.json.encode(x.shape) .. " " .. flow.json.encode(x:table()) end
local function file(header, data)
  flow.fs.write(at "x.safetensors", string.pack("<I8", #header) .. header .. (data or ""))
  return at "x.safetensors"
end

-- The bytes are those of the reference library: wide types first, then by name, padded to 8.
local st = flow.safetensors
st.save(at "a.safetensors", { b = flow.tensor({ 1, 2 }, "f32"), a = flow.tensor({ { 1 } }, "u8"), c = flow.tensor({ 3 }, "f64") }, { format = "pt" })
local bytes = flow.fs.read(at "a.safetensors")
print(#bytes % 8, string.unpack("<I8", bytes))  -- expect: 1	200	9
print((bytes:sub(9, 208):gsub(" +$", "")))  -- expect: {"__metadata__":{"format":"pt"},"c":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},"a":{"dtype":"U8","shape":[1,1],"data_offsets":[16,17]}}
print(bytes:sub(209) == string.pack("<dffB", 3, 1, 2, 1))  -- expect: true

local all, metadata = st.load(at "a.safetensors")
print(shown(all.a), shown(all.b), shown(all.c), metadata.format)  -- expect: u8 [1,1] [[1]]	f32 [2] [1.0,2.0]	f64 [1] [3.0]	pt
local header, same = st.header(at "a.safetensors")
print(header.a.dtype, flow.json.encode(header.a.shape), same.format)  -- expect: u8	[1,1]	pt
local some = st.load(at "a.safetensors", { "c" })
print(some.c:item(), some.a)  -- expect: 3.0	nil

for _, type in ipairs { "f32", "f16", "bf16", "f64", "i64", "i32", "u8", "bool" } do
  local x = flow.tensor({ { 1, 0, 1 }, { 0, 1, 0 } }, type)
  st.save(at "t.safetensors", { ["w.x"] = x:t(), ["w.none"] = flow.zeros({ 0, 3 }, type), v = x })
  local y = st.load(at "t.safetensors", "w.")
  if shown(y["w.x"]) ~= shown(x:t()) or flow.json.encode(y["w.none"].shape) ~= "[0,3]" or y.v then print(type, "differs") end
end

-- A loaded tensor may be changed: its pages are copied then, and the file stays as it is. A file that is rewritten
-- while it is loaded does not affect loaded tensors.
local x = st.load(at "a.safetensors").b
x:add_(10)
print(shown(x), shown(st.load(at "a.safetensors").b))  -- expect: f32 [2] [11.0,12.0]	f32 [2] [1.0,2.0]
st.save(at "a.safetensors", { b = x })
print(shown(x), shown(st.load(at "a.safetensors").b), whole())  -- expect: f32 [2] [11.0,12.0]	f32 [2] [11.0,12.0]	true

-- Rejected arguments.
why(st.load, at "a.safetensors", { "bb" })  -- expect: flow.safetensors.load: the file has no tensor `bb` (did you mean `b`?); flow.safetensors.header lists those that it has
why(st.load, at "none.safetensors")  -- expect: flow.safetensors.load: cannot open `none.safetensors`: No such file or directory
why(st.save, at "b.safetensors", { 1 })  -- expect: flow.safetensors.save: tensors are a table by name, and a number is not a name: write { weight = x }
why(st.save, at "b.safetensors", { x = 1 })  -- expect: flow.safetensors.save: `x` is a tensor, not a number
why(st.save, at "b.safetensors", { x = x }, { step = 1 })  -- expect: flow.safetensors.save: the metadata `step` is a string, not a number: write tostring(…) or flow.json.encode(…)
why(st.save, at "b.safetensors", { ["\xff"] = x })  -- expect: flow.safetensors.save: the name `�` is not UTF-8, which JSON needs: use base64 or other letters
why(st.save, at "b.safetensors", { __metadata__ = x })  -- expect: flow.safetensors.save: a tensor can't be named `__metadata__`: the format keeps that name
local function load(...) why(st.load, file(...)) end
flow.fs.write(at "x.safetensors", "short")
why(st.load, at "x.safetensors")  -- expect: flow.safetensors.load: x.safetensors: it has 5 bytes: a safetensors file begins with 8 that give its header's length
flow.fs.write(at "x.safetensors", string.pack("<I8", 200000000) .. "{}")
why(st.load, at "x.safetensors")  -- expect: flow.safetensors.load: x.safetensors: its header would have 200000000 bytes, and the limit is 100000000: it is not a safetensors file, or it is damaged
flow.fs.write(at "x.safetensors", string.pack("<I8", 20) .. "{}")
why(st.load, at "x.safetensors")  -- expect: flow.safetensors.load: x.safetensors: its header has 20 bytes, and 2 follow: it was cut short; copy it again
load('[]')  -- expect: flow.safetensors.load: x.safetensors: the header does not begin with `{`: it is not a safetensors file (byte 0 of the header)
load('{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', "123")  -- expect: flow.safetensors.load: x.safetensors: its tensors have 4 bytes, and 3 follow the header: it was cut short; copy it again
load('{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', "12345")  -- expect: flow.safetensors.load: x.safetensors: its tensors have 4 bytes, and 5 follow the header: it has 1 too many
load('{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', "1234")  -- expect: flow.safetensors.load: x.safetensors: `x` has 4 bytes, which does not match f32 of shape [2]
load('{"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', "12")  -- expect: flow.safetensors.load: x.safetensors: the bytes of `x` begin at 1, and those before it end at 0: they leave a gap
load('{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}', "123")  -- expect: flow.safetensors.load: x.safetensors: the bytes of `y` begin at 1, and those before it end at 2: they overlap
-- An unknown type hides nothing else in the file; narrow integers are widened.
do
  local path = file('{"__metadata__":null,"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"q":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[4,6],"scale":{"by":[1,"x}"]}},"b":{"dtype":"I8","shape":[2],"data_offsets":[6,8]},"c":{"dtype":"U32","shape":[1],"data_offsets":[8,12]},"u":{"dtype":"F4","shape":[2],"data_offsets":[12,13]}}', string.pack("<fBBbbI4B", 1.5, 1, 2, -1, 127, 4294967295, 0x11))
  local header, metadata = st.header(path)
  print(header.a.dtype, header.q.dtype, flow.json.encode(header.q.shape), header.b.dtype, header.u.dtype, next(metadata))  -- expect: f32	F8_E4M3	[2]	I8	F4	nil
  local some = st.load(path, { "a", "b", "c" })
  print(shown(some.a), shown(some.b), shown(some.c))  -- expect: f32 [1] [1.5]	i32 [2] [-1,127]	i64 [1] [4294967295]
  why(st.load, path)  -- expect: flow.safetensors.load: `q` has the type F8_E4M3, which tensors do not have: name the tensors to load, without it, or convert it where the file was written
end
load('{"x":{"dtype":"I16","shape":[2],"data_offsets":[0,2]}}', "12")  -- expect: flow.safetensors.load: x.safetensors: `x` has 2 bytes, which does not match I16 of shape [2]
load('{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":[}}', "1")  -- expect: flow.safetensors.load: x.safetensors: this is not JSON (byte 60 of the header)
load('{"x":{"dtype":"U8","shape":[99999999999,99999999999,99999999999],"data_offsets":[0,0]}}')  -- expect: flow.safetensors.load: x.safetensors: `x` has 0 bytes, which does not match u8 of shape [99999999999, 99999999999, 99999999999]
load('{"x":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,0]}}')  -- expect: flow.safetensors.load: x.safetensors: a number of `x` is too large (byte 46 of the header)
load('{"x":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}}')  -- expect: flow.safetensors.load: x.safetensors: a size or offset of `x` is not a whole number of 0 or more (byte 28 of the header)
load('{"x":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}', "1")  -- expect: flow.safetensors.load: x.safetensors: the name `x` occurs twice (byte 56 of the header)
load('{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', "12")  -- expect: flow.safetensors.load: x.safetensors: the name `x` occurs twice (byte 57 of the header)
load('{"__metadata__":{"a":"1"},"__metadata__":{"a":"2"}}')  -- expect: flow.safetensors.load: x.safetensors: the name `__metadata__` occurs twice (byte 41 of the header)
load('{"__metadata__":{"a":"1","a":"2"}}')  -- expect: flow.safetensors.load: x.safetensors: the metadata has `a` twice (byte 29 of the header)
load('{"x":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', "1")  -- expect: flow.safetensors.load: x.safetensors: `x` has `dtype` twice (byte 27 of the header)
why(st.header, file('{"x":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}', "1"))  -- expect: flow.safetensors.header: x.safetensors: the name `x` occurs twice (byte 56 of the header)
load('{"x":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}', "1")  -- expect: flow.safetensors.load: `x` has 9 dimensions; a tensor has at most 8
load('{"x":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}}', "1")  -- expect: flow.safetensors.load: x.safetensors: a size or offset of `x` is not a whole number of 0 or more (byte 28 of the header)
load('{"x":' .. ("["):rep(100000))  -- expect: flow.safetensors.load: x.safetensors: `{` is missing after a name (byte 5 of the header)
load('{"\xff":{}}')  -- expect: flow.safetensors.load: x.safetensors: its header is not UTF-8: it is damaged
load('{"\\ud800":{}}')  -- expect: flow.safetensors.load: x.safetensors: a string has half of a surrogate pair (byte 8 of the header)
load('{"__metadata__":{"a":1}}')  -- expect: flow.safetensors.load: x.safetensors: the metadata `a` is not a string (byte 21 of the header)
load('{} x')  -- expect: flow.safetensors.load: x.safetensors: data follows the header's closing `}` (byte 3 of the header)
