-- Attention in a function of flow.graph, by cuDNN if the executor has it: launches give the bits of a call without a graph.
local function random(seed, rows) return flow.randn({ 1, 2, rows, 16 }, { seed = seed }):to("bf16"):to("cuda") end
local k, v = random(1, 64), random(2, 64)
local function attend(q)
  local own = q:detach():requires_grad_()
  local out = own:attention(k, v, { causal = true })
  out:to("f32"):square():sum():backward()
  return out:detach(), own.grad
end
local run, apart, size = flow.graph(attend), 0, 0
for seed = 3, 6 do
  local q = random(seed, 64)
  local out, grad = run(q)
  local due_out, due_grad = attend(q)
  apart = apart + (out - due_out):abs():max() + (grad - due_grad):abs():max()
  size = size + due_out:to("f32"):abs():max() + due_grad:to("f32"):abs():max()
end
print(apart, size > 1)  -- expect: 0.0	true

-- A shape that only the recorded call has: cuDNN's plan for it would be made, checked and awaited.
local keys = { [64] = k, [128] = random(7, 128) }
local longer = flow.graph(function(q) return (keys[flow.is_capturing() and 128 or 64] * q):attention(k, v) end)
local two = flow.full({}, 2, "bf16"):to("cuda")
longer(two)
local expected = (keys[128] * 2):attention(k, v):to("f32")
for _ = 1, 2 do print((longer(two):to("f32") - expected):abs():max() < 0.05) end  -- expect: true
-- expect: true
