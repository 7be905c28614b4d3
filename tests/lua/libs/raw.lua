-- Files that contain only elements, and mapped tensors.
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

for _, type in ipairs { "f32", "f16", "bf16", "f64", "i64", "i32", "u8", "bool" } do
  local x = flow.tensor({ { 1, 0, 1 }, { 0, 1, 0 } }, type)
  flow.data.write_raw(at "x.bin", x:t())
  local y = flow.data.raw(at "x.bin", type, { 3, -1 })
  if shown(y) ~= shown(x:t()) then print(type, shown(y)) end
end
flow.fs.write(at "y.bin", "head" .. string.pack("<i4i4i4i4i4", 1, 2, 3, 4, 5) .. "!")
print(shown(flow.data.raw(at "y.bin", "i32", { 2, 2 }, 4)))  -- expect: i32 [2,2] [[1,2],[3,4]]
print(shown(flow.data.raw(at "y.bin", "u8", { -1, 2 }, 21)))  -- expect: u8 [2,2] [[0,0],[0,33]]
why(flow.data.raw, at "y.bin", "u8", { -1, 2 }, 4)  -- expect: flow.data.raw: y.bin: the 21 bytes from byte 4 on are not a multiple of 2 bytes: the size of u8 times 2, the product of the shape's other sizes
why(flow.data.raw, at "y.bin", "i32", { -1 }, 4)  -- expect: flow.data.raw: y.bin: the 21 bytes from byte 4 on are not a multiple of 4 bytes: the size of i32 times 1, the product of the shape's other sizes
print(shown(flow.data.raw(at "y.bin", "i32", { 2 }, 8)))  -- expect: i32 [2] [2,3]
print(shown(flow.data.raw(at "y.bin", "u8", {}, 24)))  -- expect: u8 [] 33
print(shown(flow.data.raw(at "y.bin", "u8", { 0, 7 }, 25)))  -- expect: u8 [0,7] []
flow.fs.write(at "b.bin", "\0\2\1")
print(shown(flow.data.raw(at "b.bin", "bool", { 3 })))  -- expect: bool [3] [false,true,true]

-- Changing a mapped tensor does not change the file, and rewriting the file does not change the tensor.
local a = flow.data.raw(at "y.bin", "i32", { 3 }, 4)
local b = a[{ 2, 3 }]
b:fill_(0)
print(shown(a), shown(flow.data.raw(at "y.bin", "i32", { 3 }, 4)))  -- expect: i32 [3] [1,0,0]	i32 [3] [1,2,3]
flow.data.write_raw(at "y.bin", a)
print(shown(a), flow.fs.size(at "y.bin"), whole())  -- expect: i32 [3] [1,0,0]	12	true
flow.data.write_npy(at "z.npy", flow.arange(4))
local z = flow.data.npy(at "z.npy")
flow.data.write_npy(at "z.npy", z * 2)
print(shown(z), shown(flow.data.npy(at "z.npy")))  -- expect: i64 [4] [1,2,3,4]	i64 [4] [2,4,6,8]

why(flow.data.raw, at "y.bin", "i32", { 4 })  -- expect: flow.data.raw: y.bin: [4] elements of i32 from byte 0 on are requested, and the file has 12 bytes
why(flow.data.raw, at "y.bin", "i32", { 1 }, 13)  -- expect: flow.data.raw: y.bin: the offset 13 is outside the file, which has 12 bytes
why(flow.data.raw, at "y.bin", "i32", { -1, -1 })  -- expect: flow.data.raw: one size of a shape may be -1
why(flow.data.raw, at "y.bin", "u8", { 1 << 40, 1 << 40 })  -- expect: flow.data.raw: y.bin: [1099511627776, 1099511627776] elements of u8 from byte 0 on are requested, and the file has 12 bytes
why(flow.data.raw, at "y.bin", "i32", 3)  -- expect: flow.data.raw takes a shape such as { -1, 28 }, not a number
why(flow.data.raw, at "none.bin", "i32", { 1 })  -- expect: flow.data.raw: cannot open `none.bin`: No such file or directory
why(flow.data.write_raw, at "y.bin", { 1 })  -- expect: the second argument of flow.data.write_raw is a tensor, not a table
