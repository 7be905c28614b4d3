-- Tensors on a GPU in Lua; here on the emulator.
local function why(f, ...)
  local ok, message = pcall(f, ...)
  print(ok and "no error" or (tostring(message):gsub("^%w+%.lua:%d+: ", "")))
end
local x = flow.randn({ 3, 4 }, { seed = 1 })
local y = x:to("cuda")
print(y.device, (y * 2).device, y:to("cpu").device, y:to("cuda:0").device, flow.tensor(y).device, flow.zeros_like(y).device)  -- expect: cuda:0	cuda:0	cpu	cuda:0	cuda:0	cuda:0
print(y:to("cpu") == x, y == y:clone(), y[2][3] == x[2][3], y:table()[1][1] == x[1][1], tostring(y):match("^[^\n]*"))  -- expect: true	true	true	true	tensor f32 [3, 4] on cuda:0
print(y[{ 1, 2 }]:to("cpu") == x[{ 1, 2 }], y:t():to("cpu") == x:t(), y[flow.tensor { 3, 1 }]:to("cpu") == x[flow.tensor { 3, 1 }], y[y:gt(0):any(2):to("cpu")].device)  -- expect: true	true	true	cuda:0
local z = y:clone()
z[1] = 0
z[{ 2, 3 }] = flow.ones(4)
z[{ {}, 1 }] = z[{ {}, 2 }] + 1
print(flow.json.encode(z:table()))  -- expect: [[1.0,0.0,0.0,0.0],[2.0,1.0,1.0,1.0],[2.0,1.0,1.0,1.0]]
-- The same numbers as on the CPU; integers and uniform numbers have the same bits on every device.
print(flow.rand({ 9 }, { seed = 3, device = "cuda" }):to("cpu") == flow.rand({ 9 }, { seed = 3 }))  -- expect: true
print(flow.randint(1, 6, { 9 }, { seed = 3, device = "cuda" }):to("cpu") == flow.randint(1, 6, { 9 }, { seed = 3 }))  -- expect: true
print(flow.fuse(function(a, b) return (a * b + 1):tanh() end, y, y) == (y * y + 1):tanh())  -- expect: true
local pictures = flow.randint(0, 255, { 2, 2, 2, 3 }, { dtype = "u8", seed = 3 })
print(pictures:to("cuda"):normalize({ 0.5, 0.25, 0 }, { 2, 1, 0.5 }):to("cpu") == pictures:normalize({ 0.5, 0.25, 0 }, { 2, 1, 0.5 }))  -- expect: true
why(function() return y + flow.ones(4) end)  -- expect: cannot add tensor f32 [3, 4] on cuda:0 and tensor f32 [4]: they are on different devices; move one with x:to("cpu")
why(function() return y:matmul(flow.ones(4, 1)) end)  -- expect: matmul of tensor f32 [3, 4] on cuda:0 and tensor f32 [4, 1]: they are on different devices; move one with x:to("cuda:0")
why(function() return flow.zeros(3):to("cuda:7") end)  -- expect: cuda:7 can't be used: there are 1 GPUs here, the first is cuda:0
-- An index out of range is reported at the next wait.
local found = y:embedding(flow.tensor({ 1, 4 }, "cuda"))
why(function() return found:to("cpu") end)  -- expect: an index was outside its tensor on cuda:0: element 2 of the index of an operation since the last wait
print(y:embedding(flow.tensor({ 1, 3 }, "cuda")):to("cpu") == x[flow.tensor { 1, 3 }])  -- expect: true
local ok, full = pcall(flow.zeros, 1 << 31, "cuda")
print(ok, (full:gsub("%d+", "N")))  -- expect: false	tensors.lua:N: out of memory on cuda:N: N bytes were requested; of its N bytes, this process's tensors hold N, its memory pool caches N, other processes and libraries hold N, and N are free (the GPU cannot allocate N bytes: out of memory)
-- Memory that Lua drops is returned to the GPU.
local bytes = flow.zeros({ 1 << 25 }, "u8")
for i = 1, 40 do local room = bytes:to("cuda") end
bytes = nil
for i = 1, 300 do local room = flow.zeros(1 << 20, "cuda") end
-- Larger transfers than one chunk, there and back; and many small ones, one after another.
local long = flow.arange(1, 1500001)
print(long:to("cuda"):to("cpu") == long, (long:to("cuda") * 2):sum() == (long * 2):sum())  -- expect: true	true
local small, all = {}, true
for i = 1, 50 do small[i] = flow.full({ 3 }, i):to("cuda") end
for i = 1, 50 do all = all and small[i]:to("cpu") == flow.full({ 3 }, i) end
print(all)  -- expect: true
flow.data.write_npy(ctx.dir .. "/gpu.npy", y)
flow.safetensors.save(ctx.dir .. "/gpu.safetensors", { y = y })
print(flow.data.npy(ctx.dir .. "/gpu.npy") == x, flow.safetensors.load(ctx.dir .. "/gpu.safetensors").y == x)  -- expect: true	true
