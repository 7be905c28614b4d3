local function file(name, bytes) flow.fs.write(ctx.dir .. "/" .. name, bytes) return ctx.dir .. "/" .. name end
local function why(f, ...)
  local ok, message = pcall(f, ...)
  message = flow.text.replace(tostring(message), ctx.dir .. "/", "")
  print(ok and "no error" or (message:gsub("^%w+%.lua:%d+: ", "")))
end

-- The bytes are those of numpy.save and of the format's description.
local function npy(dict, body, version)
  dict = dict .. (" "):rep(-(#dict + 11) % 64) .. "\n"
  return "\x93NUMPY" .. (version or "\1\0") .. string.pack(version and "<I4" or "<I2", #dict) .. dict .. (body or "")
end
local function load(dict, body, version) return flow.data.npy(file("x.npy", npy(dict, body, version))) end
local function shown(x) return x.dtype .. " " .. flow.json.encode(x.shape) .. " " .. flow.json.encode(x:table()) end

local f4 = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
print(shown(load(f4, string.pack("<ffffff", 1, 2, 3, 4, 5, 6))))  -- expect: f32 [2,3] [[1.0,2.0,3.0],[4.0,5.0,6.0]]
print(shown(load(f4, string.pack("<ffffff", 1, 2, 3, 4, 5, 6), "\2\0")))  -- expect: f32 [2,3] [[1.0,2.0,3.0],[4.0,5.0,6.0]]
local fortran = "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }"
print(shown(load(fortran, string.pack(">i2i2i2i2i2i2", 1, 4, 2, 5, 3, -6))))  -- expect: i32 [2,3] [[1,2,3],[4,5,-6]]
local function vector(kind) return "{'descr': '" .. kind .. "', 'fortran_order': False, 'shape': (2,), }" end
print(shown(load(vector "<u4", string.pack("<I4I4", 1, 4294967295))))  -- expect: i64 [2] [1,4294967295]
print(shown(load(vector "|i1", "\1\xff")))  -- expect: i32 [2] [1,-1]
print(shown(load(vector "<u2", "\1\0\xff\xff")))  -- expect: i32 [2] [1,65535]
print(shown(load(vector "|b1", "\0\2")))  -- expect: bool [2] [false,true]
print(shown(load(vector ">f8", string.pack(">dd", 0.5, -1))))  -- expect: f64 [2] [0.5,-1.0]
print(shown(load(vector "<f2", "\0\x3c\0\xc0")))  -- expect: f16 [2] [1.0,-2.0]
print(load("{'descr': '<f8', 'fortran_order': False, 'shape': (), }", string.pack("<d", 7)):item())  -- expect: 7.0
print(shown(load("{'descr': '<f8', 'fortran_order': True, 'shape': (0, 3), }")))  -- expect: f64 [0,3] []
for _, type in ipairs { "f32", "f16", "f64", "i64", "i32", "u8", "bool" } do
  local x = flow.tensor({ { 1, 0 }, { 0, 1 } }, type)
  flow.data.write_npy(ctx.dir .. "/y.npy", x:t())
  local y = flow.data.npy(ctx.dir .. "/y.npy")
  if y.dtype ~= type or shown(y) ~= shown(x:t()) then print(type, shown(y)) end
end
flow.data.write_npy(ctx.dir .. "/y.npy", flow.tensor({ 1, 2 }, "i32"))
print(flow.fs.read(ctx.dir .. "/y.npy") == npy("{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }", string.pack("<i4i4", 1, 2)))  -- expect: true
why(flow.data.write_npy, ctx.dir .. "/y.npy", flow.zeros(2, "bf16"))  -- expect: flow.data.write_npy: NumPy has no bf16: write x:to("f32")
why(flow.data.write_npy, ctx.dir .. "/y.npy", { 1 })  -- expect: the second argument of flow.data.write_npy is a tensor, not a table

why(load, f4, "short")  -- expect: flow.data.npy: x.npy: its header has 2 x 3 elements of 4 bytes, and 5 bytes follow
why(load, "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }")  -- expect: flow.data.npy: x.npy: its header has 4611686018427387904 x 4 elements of 4 bytes, and 0 bytes follow
why(load, vector "|O", "")  -- expect: flow.data.npy: x.npy: its element type `|O` is not supported: expected one of f2, f4, f8, i1, i2, i4, i8, u1, u2, u4, b1
local no_header = "its header is not a dictionary of descr, fortran_order and shape of up to 8 dimensions"
for _, dict in ipairs {
  "", "{", "{}", "{'descr': '<f4'}", "{'descr': '<f4', 'fortran_order': 1, 'shape': (), }",
  "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
  "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }",
  "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }",
  "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,), }",
  "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } more",
  "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", ("{"):rep(9000),
} do
  local ok, message = pcall(load, dict, "1234")
  if ok or not message:find(no_header, 1, true) then print(dict, message) end
end
local function bytes(text) return flow.data.npy, file("x.npy", text) end
why(bytes "PK\3\4")  -- expect: flow.data.npy: x.npy: it is not an NPY file: such a file begins with \x93NUMPY (an .npz is a zip of them)
why(bytes "\x93NUMPY\9\0\0\0")  -- expect: flow.data.npy: x.npy: its NPY version 9 is not 1, 2 or 3
why(bytes "\x93NUMPY\2\0\xff\xff")  -- expect: flow.data.npy: x.npy: it ends within its header
why(bytes "\x93NUMPY\2\0\xff\xff\xff\xff{")  -- expect: flow.data.npy: x.npy: it ends within its header

-- IDX
local function idx(text) return flow.data.idx(file("x.idx", text)) end
print(shown(idx("\0\0\x08\2" .. string.pack(">I4I4", 2, 2) .. "\1\2\3\xff")))  -- expect: u8 [2,2] [[1,2],[3,255]]
print(shown(idx("\0\0\x09\1" .. string.pack(">I4", 2) .. "\1\xff")))  -- expect: i32 [2] [1,-1]
print(shown(idx("\0\0\x0b\1" .. string.pack(">I4>i2", 1, -300))))  -- expect: i32 [1] [-300]
print(shown(idx("\0\0\x0c\1" .. string.pack(">I4>i4", 1, -300))))  -- expect: i32 [1] [-300]
print(shown(idx("\0\0\x0d\1" .. string.pack(">I4>f", 1, 0.5))))  -- expect: f32 [1] [0.5]
print(shown(idx("\0\0\x0e\1" .. string.pack(">I4>d", 1, 0.5))))  -- expect: f64 [1] [0.5]
why(idx, "")  -- expect: flow.data.idx: x.idx: it is not an IDX file: such a file begins with two zero bytes
why(idx, "\0\0\x07\1")  -- expect: flow.data.idx: x.idx: its element type 0x07 is not an IDX type: expected 08, 09, 0B, 0C, 0D or 0E
why(idx, "\0\0\x08\xff")  -- expect: flow.data.idx: x.idx: it has 255 dimensions; a tensor has at most 8
why(idx, "\0\0\x08\2\0\0\0\1")  -- expect: flow.data.idx: x.idx: it ends within its header
why(idx, "\0\0\x08\3" .. ("\xff"):rep(12))  -- expect: flow.data.idx: x.idx: its header has 4294967295 x 4294967295 x 4294967295 elements of 1 bytes, and 0 bytes follow
why(idx, "\0\0\x0e\2" .. string.pack(">I4I4", 0x80000000, 0x40000000))  -- expect: flow.data.idx: x.idx: its header has 2147483648 x 1073741824 elements of 8 bytes, and 0 bytes follow
why(idx, "\0\0\x08\1\0\0\0\1ab")  -- expect: flow.data.idx: x.idx: its header has 1 elements of 1 bytes, and 2 bytes follow
