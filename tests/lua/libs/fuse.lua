local function why(f, ...)
  local ok, message = pcall(f, ...)
  print(ok and "no error" or (tostring(message):gsub("^%w+%.lua:%d+: ", ""):gsub("%. Call other.*", ""):gsub(": %+ %- .*", "")))
end

-- One pass gives the same bits as separate operations, also with broadcasting.
local x, y = flow.randn(50, 33, { seed = 1 }), flow.randn(33, { seed = 2 })
local function f(a, b) return (a * b + 1):tanh() / (a:square() + 2) - (0.5 * b):clamp(-0.1, 0.2):maximum(a) end
print(flow.fuse(f, x, y) == f(x, y), flow.fuse(f, x:t(), x:t()[{ 1 }]:select(1, 1)) == f(x:t(), x:t():select(1, 1)))  -- expect: true	true
local wide = x:to("f64")
print(flow.fuse(f, wide, y:to("f64")) == f(wide, y:to("f64")))  -- expect: true
-- f16 and bf16 are rounded once, at the end.
print(flow.fuse(function(a) return a * 3 / 3 end, flow.tensor({ 1.1 }, "f16")) == flow.tensor({ 1.1 }, "f16"))  -- expect: true
print(flow.fuse(function(a, s) return a:lerp(a + 1, s):addcmul(a, a, 2) end, flow.tensor { 1.0 }, 0.5):item())  -- expect: 3.5
print(flow.fuse(function(a) return a end, y) == y, flow.fuse(function(a) return flow.ones(2) end, y)[1])  -- expect: true	1.0

-- Gradients of operands, and of what the function reaches.
local p, q, w = x:clone():requires_grad_(), y:clone():requires_grad_(), flow.ones(33):requires_grad_()
local function g(a, b) return f(a, b) * w:sigmoid() end
flow.fuse(g, p, q):sum():backward()
local fused = { p.grad, q.grad, w.grad }
p.grad, q.grad, w.grad = nil, nil, nil
g(p, q):sum():backward()
print(fused[1] == p.grad, fused[2] == q.grad, fused[3] == w.grad)  -- expect: true	true	true
print(flow.no_grad(flow.fuse, g, p, q).requires_grad)  -- expect: false

-- Functions that are too long for one pass, or have several types, run one operation at a time.
local function long(a) for i = 1, 40 do a = a * 0.5 + i end return a end
local function many(a) local sum, parts = a, {} for i = 1, 12 do parts[i] = a + i end for i = 1, 12 do sum = sum * parts[i] end return sum end
local others = {} for i = 1, 8 do others[i] = y + i end
local function all(a) for i = 1, 8 do a = a + others[i] end return a end
print(flow.fuse(long, y) == long(y), flow.fuse(many, y) == many(y), flow.fuse(all, y) == all(y))  -- expect: true	true	true
print(flow.fuse(function(a) return a * flow.tensor { 2 } end, y) == y * 2)  -- expect: true

why(flow.fuse, 3)  -- expect: flow.fuse takes a function, not a number
why(flow.fuse, f)  -- expect: the first tensor of flow.fuse is of floats, not missing
why(flow.fuse, f, flow.tensor { 1 })  -- expect: the first tensor of flow.fuse is of floats, not tensor i64 [1]
why(flow.fuse, function(a) return a, a end, x)  -- expect: the function of flow.fuse returns one tensor, not 2 values
why(flow.fuse, function(a) return 1 end, x)  -- expect: what the function of flow.fuse returns is a tensor, not a number
why(flow.fuse, function(a) return a + flow.ones(2) end, x)  -- expect: cannot add [50, 33] and [2]: shapes fit where their sizes, from the last dimension on, are equal or 1
for _, other in ipairs {
  function(a) return a:softmax() end, function(a) return a:sum() end, function(a) if a[1][1] > 0 then return a end end,
  function(a) return a:reshape(-1) + 1 end, function(a) return a[1] + 1 end, function(a) return a:add_(1) end,
  function(a) return a:to("f64") end, function(a) return a:to("cpu") end, function(a) return a:table() end, function(a) return tostring(a) end,
  function(a) return a:matmul(a:t()) end, function(a) return flow.cat { a, a } end, function(a) return a:eq(0) end,
  function(a) return flow.where(x:gt(0), a, x) end, function(a) return a == x and a end, function(a) x[1] = a[1] return x end,
  function(a) return flow.fuse(function(b) return a + b end, x) end,
} do why(flow.fuse, other, x) end
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
why(flow.fuse, function(a) return a:matmul(flow.ones(33, 2)) end, x)  -- expect: flow.fuse takes a function of operations on elements
-- Windows of computed tensors, and other shapes of them, too.
for _, other in ipairs {
  function(a) return (a + 1):reshape(-1) * 2 end, function(a) return (a + 1)[{ 1, 3 }] * 2 end, function(a) return (a + 1):reshape(-1) end,
  function(a) return (a * 2)[1] end, function(a) return (a + 1):unsqueeze(1) + a end,
} do why(flow.fuse, other, x) end
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
local kept
flow.fuse(function(a) kept = a + 1 return a end, x)
why(function() return kept + 1 end)  -- expect: a symbol of flow.fuse was used after it: return the values that you need, and use flow.fuse's result
why(function() return kept:sum() end)  -- expect: flow.fuse takes a function of operations on elements
-- A later flow.fuse does not accept what an earlier one's function kept either.
for i = 1, 3 do why(flow.fuse, function(a) return a * kept end, x) end
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements
-- expect: flow.fuse takes a function of operations on elements

-- Backward differentiates what was computed, not what the function would compute now: captured numbers, captured
-- tensors, and their own gradients.
local w, total, scale = flow.tensor { 1.0 }:requires_grad_(), flow.zeros(1), 1
for _ = 1, 3 do
  total = total + flow.fuse(function(v) return v * scale + v:square() end, w)
  scale = scale / 2
end
total:sum():backward()
print(flow.json.encode(w.grad:table()))  -- expect: [7.75]
local u, h = flow.tensor { 1.0, 2, 3 }:requires_grad_(), flow.tensor { 4.0, 5, 6 }:requires_grad_()
local half = h * 0.5
(flow.fuse(function(v) return v * half + half:exp():clamp(0, 1e9) end, u):sum() + half:sum()):backward()
print(u.grad == half:detach(), (h.grad - (u:detach() + half:detach():exp() + 1) * 0.5):abs():max() < 1e-4)  -- expect: true	true
local five = flow.full({ 3 }, 5)
local y = flow.fuse(function(v) return v * five end, u)
five:fill_(100)
why(function() y:sum():backward() end)  -- expect: backward needs tensor f32 [3] as it was when it was used, but it was changed in place since: change a copy, x:clone(), or change it after backward
local chain = flow.ones(3)
u.grad = nil
for i = 1, 3 do chain = flow.fuse(function(v) return v * i + chain end, u) end
chain:sum():backward()
print(flow.json.encode(u.grad:table()))  -- expect: [6.0,6.0,6.0]
print(flow.fuse(function(v) return v:clamp(0 / 0, 1) end, flow.tensor { 1.0 }):sum() ~= 1)  -- expect: true
-- A checkpoint's function that uses its own result is notified, and ends nothing.
local again = flow.ones(3)
for _ = 1, 3 do again = flow.checkpoint(function(v) return v * again end, u) end
why(function() again:sum():backward() end)  -- expect: backward has already passed `checkpoint`, and its saved values are released. Add the losses and call backward once, or compute them again; and pass the tensors that the function of flow.checkpoint uses as arguments
-- An assignment to a part would lose its history.
local parts = flow.zeros(2, 3)
why(function() parts[1] = u * 2 end)  -- expect: tensor f32 [3] would be written into a tensor, and its gradient could not be passed back: write y = x + … for a new tensor, join with flow.cat or flow.stack, or write x:detach()
why(function() parts[flow.tensor { 1 }] = u * 2 end)  -- expect: tensor f32 [3] would be written into a tensor, and its gradient could not be passed back: write y = x + … for a new tensor, join with flow.cat or flow.stack, or write x:detach()
why(function() parts[1] = u:detach() end)  -- expect: no error
