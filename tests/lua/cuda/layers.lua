-- Layers on a GPU, here the emulator: padded rows, activations in products, rounded weights, clipping without waiting.
local function near(a, b, tolerance)
  a, b = a:to("cpu", "f64"), b:to("cpu", "f64")
  local scale = math.max(1e-6, b:abs():max())
  return (a - b):abs():max() <= (tolerance or 1e-5) * scale
end
local function why(f, ...) return (select(2, pcall(f, ...)):gsub("^.-:%d+: ", "")) end
local function all_near(list, others, tolerance)
  for i = 1, #list do
    if not near(list[i], others[i], tolerance) then return i end
  end
  return true
end

-- 131 outputs are computed in rows of 256 elements, and nobody sees the rest.
local x, w, b = flow.randn({ 2, 70, 16 }, { seed = 1 }), flow.randn({ 131, 16 }, { seed = 2 }), flow.randn({ 131 }, { seed = 3 })
local labels = flow.randint(1, 131, { 140 }, { seed = 4 })
local function classify(device, cast, use)
  local own = {}
  for i, each in ipairs { x, w, b } do own[i] = each:to(device):clone():requires_grad_() end
  local logits = flow.autocast(cast, function() return own[1]:linear(own[2], own[3]) end)
  local loss = use(logits, labels:to(device))
  loss:backward()
  return { logits:detach(), loss:detach(), own[1].grad, own[2].grad, own[3].grad }
end
local uses = {
  function(logits, y) return logits:reshape(-1, 131):cross_entropy(y) end,
  function(logits) return (logits * 2):square():mean() end,
  function(logits) return logits:narrow(3, 3, 100):exp():mean() end,
  function(logits) return logits:t(2, 3):contiguous():square():mean() + logits:softmax():square():sum() end,
}
for i, use in ipairs(uses) do
  local cpu, gpu = classify("cpu", "f32", use), classify("cuda", "f32", use)
  local small, small_gpu = classify("cpu", "bf16", use), classify("cuda", "bf16", use)
  print(i, table.concat(gpu[1].shape, " "), all_near(gpu, cpu), all_near(small_gpu, small, 0.02), gpu[4].dtype, small_gpu[4].dtype)
  -- expect: 1	2 70 131	true	true	f32	f32
  -- expect: 2	2 70 131	true	true	f32	f32
  -- expect: 3	2 70 131	true	true	f32	f32
  -- expect: 4	2 70 131	true	true	f32	f32
end

-- An activation in a product, whose gradient the next product computes, is the activation after it.
local down = flow.randn({ 16, 24 }, { seed = 5 })
local up, up_bias = flow.randn({ 24, 16 }, { seed = 6 }), flow.randn({ 24 }, { seed = 7 })
local function mlp(device, cast, activation, fused, also)
  local own = {}
  for i, each in ipairs { x, up, up_bias, down } do own[i] = each:to(device):clone():requires_grad_() end
  local y = flow.autocast(cast, function()
    local hidden
    if fused then
      hidden = own[1]:linear(own[2], own[3], activation)
    else
      hidden = own[1]:linear(own[2], own[3])
      hidden = activation == "relu" and hidden:relu() or hidden:gelu(activation == "gelu_tanh" and "tanh" or nil)
    end
    local out = hidden:linear(own[4]):square():mean()
    return also and out + hidden:square():mean() or out
  end)
  y:backward()
  return { y:detach(), own[1].grad, own[2].grad, own[3].grad, own[4].grad }
end
for _, activation in ipairs { "relu", "gelu", "gelu_tanh" } do
  for _, also in ipairs { false, true } do
    local apart = mlp("cpu", "f32", activation, false, also)
    local small = mlp("cpu", "bf16", activation, false, also)
    print(activation, also, all_near(mlp("cpu", "f32", activation, true, also), apart, 1e-7),
      all_near(mlp("cuda", "f32", activation, true, also), apart),
      all_near(mlp("cpu", "bf16", activation, true, also), small, 0.01),
      all_near(mlp("cuda", "bf16", activation, true, also), small, 0.02))
    -- expect: relu	false	true	true	true	true
    -- expect: relu	true	true	true	true	true
    -- expect: gelu	false	true	true	true	true
    -- expect: gelu	true	true	true	true	true
    -- expect: gelu_tanh	false	true	true	true	true
    -- expect: gelu_tanh	true	true	true	true	true
  end
end
print(why(x.linear, x, up, up_bias, "silu"))  -- expect: the activation of x:linear is "relu", "gelu" or "gelu_tanh", not "silu"

-- The weights that were rounded for products follow every change of the weights.
local layer = flow.nn.linear(16, 131):to("cuda")
local input = x:to("cuda")
local function output() return flow.no_grad(flow.autocast, "bf16", layer, input) end
local function expected()
  return flow.no_grad(flow.autocast, "bf16", function() return input:linear(layer.weight:clone(), layer.bias:clone()) end)
end
local opt = flow.optim.adamw(layer, { lr = 0.1 })
for step = 1, 3 do
  local loss = flow.autocast("bf16", function() return layer(input):square():mean() end)
  opt:zero_grad()
  loss:backward()
  opt:step()
  print(step, near(output(), expected(), 0))  -- expect: 1	true
  -- expect: 2	true
  -- expect: 3	true
end
flow.no_grad(function() layer.weight:mul_(2) end)
print(near(output(), expected(), 0))  -- expect: true
layer.weight:detach():narrow(1, 5, 3):zero_()
print(near(output(), expected(), 0), output()[{ {}, {}, { 5, 7 } }]:sub(layer.bias:detach()[{ { 5, 7 } }]):abs():max() < 0.01)  -- expect: true	true
layer:load(flow.nn.linear(16, 131):state())
print(near(output(), expected(), 0))  -- expect: true
-- A backward after the step uses the weights of its forward.
local source = input:clone():requires_grad_()
local before = flow.autocast("bf16", function() return source:linear(layer.weight) end)
local weight = layer.weight:detach():clone()
opt:step()
before:backward(flow.ones_like(before:detach()))
local wanted = flow.ones({ 140, 131 }):matmul(weight:to("cpu")):reshape(2, 70, 16)
print(near(source.grad, wanted, 0.02))  -- expect: true

-- Clipping on a GPU does not wait: the norm is a tensor. A factor is applied by the step.
local function stepped(device, how)
  local model = flow.nn.linear(3, 2):to(device)
  flow.no_grad(function() model.weight:fill_(0.5) model.bias:fill_(0.25) end)
  local adam = flow.optim.adamw(model, { lr = 0.1 })
  local norm
  for step = 1, 3 do
    model.weight.grad, model.bias.grad = flow.full({ 2, 3 }, 3 * step, device), flow.full({ 2 }, 4, device)
    if how == "factor" then
      local factor
      factor, norm = flow.optim.clip_grad_factor(model, 1)
      adam:step(factor)
    else
      norm = flow.optim.clip_grad_norm(model, 1)
      adam:step()
    end
  end
  return norm, model.weight:detach():to("cpu"), model.bias:detach():to("cpu")
end
local norm, cpu_weight, cpu_bias = stepped("cpu", "norm")
for _, device in ipairs { "cpu", "cuda" } do
  for _, how in ipairs { "norm", "factor" } do
    local of, one, two = stepped(device, how)
    print(device, how, math.type(of) or of.dtype .. " " .. of.device, math.abs((math.type(of) and of or of:item()) - norm) < 1e-9,
      near(one, cpu_weight, 1e-6), near(two, cpu_bias, 1e-6))
    -- expect: cpu	norm	float	true	true	true
    -- expect: cpu	factor	f64 cpu	true	true	true
    -- expect: cuda	norm	f64 cuda:0	true	true	true
    -- expect: cuda	factor	f64 cuda:0	true	true	true
  end
end

-- f32 with bf16 is added without a cast.
local wide, narrow = flow.randn({ 5, 8 }, { seed = 8 }), flow.randn({ 8 }, { seed = 9 }):to("bf16")
local p, q = wide:to("cuda"):requires_grad_(), narrow:to("cuda"):requires_grad_()
local sum = (p + q) - (q - p)
sum:square():sum():backward()
print(sum.dtype, near(sum:detach(), wide * 2), p.grad.dtype, q.grad.dtype, near(p.grad, wide * 8), q.grad:abs():max() == 0)  -- expect: f32	true	f32	bf16	true	true

-- A norm for a product has the type of the product: the same bits as a cast after it.
local rows, scale = flow.randn({ 6, 24 }, { seed = 10 }), flow.rand({ 24 }, { seed = 11 })
for _, device in ipairs { "cpu", "cuda" } do
  for _, name in ipairs { "layer_norm", "rms_norm" } do
    local results = {}
    for _, for_product in ipairs { false, true } do
      local r, s = rows:to(device):clone():requires_grad_(), scale:to(device):clone():requires_grad_()
      local y = flow.autocast("bf16", function()
        if name == "rms_norm" then return r:rms_norm(s, 1e-6, for_product) end
        return r:layer_norm(s, nil, 1e-5, for_product)
      end)
      y:to("bf16"):backward(flow.full({ 6, 24 }, 0.5, device):to("bf16") * rows:to(device, "bf16"))
      table.insert(results, { y.dtype, y:detach():to("bf16"), r.grad, s.grad })
    end
    local a, b = results[1], results[2]
    print(device, name, a[1], b[1], a[2] == b[2], near(a[3], b[3], 1e-6), near(a[4], b[4], 1e-6), b[3].dtype)
    -- expect: cpu	layer_norm	f32	bf16	true	true	true	f32
    -- expect: cpu	rms_norm	f32	bf16	true	true	true	f32
    -- expect: cuda	layer_norm	f32	bf16	true	true	true	f32
    -- expect: cuda	rms_norm	f32	bf16	true	true	true	f32
  end
end

-- x + y and its norm by one operation: the bits of two operations, also with another type of y or another shape.
for _, device in ipairs { "cpu", "cuda" } do
  local ok, places = true, 0
  for _, case in ipairs { { "f32", "f32" }, { "f32", "bf16" }, { "bf16", "bf16" }, { "f64", "f64" }, { "f32", "row" }, { "bf16", "f32" } } do
    for _, name in ipairs { "layer_norm", "rms_norm" } do
      local X = flow.randn({ 3, 5, 24 }, { seed = 22 }):to(device, case[1])
      local Y = case[2] == "row" and flow.randn({ 24 }, { seed = 23 }):to(device) or flow.randn({ 3, 5, 24 }, { seed = 23 }):to(device, case[2])
      local function results(together)
        local a, b, s = X:clone():requires_grad_(), Y:clone():requires_grad_(), scale:to(device):clone():requires_grad_()
        local sum, norm = flow.autocast("bf16", function()
          local rest = name == "rms_norm" and { s, 1e-6, true } or { s, nil, 1e-5, true }
          if together then return a["add_" .. name](a, b, table.unpack(rest, 1, 4)) end
          local c = a + b
          return c, c[name](c, table.unpack(rest, 1, 4))
        end)
        local loss = (sum * sum):sum() + (norm:to(sum.dtype) * X:to(sum.dtype)):sum()
        loss:backward()
        return { sum:detach(), norm:detach(), a.grad, b.grad, s.grad }
      end
      local one, two = results(true), results(false)
      for i, each in ipairs(two) do
        places = places + 1
        if not (one[i] == each) then ok = false print(device, name, case[1], case[2], i) end
      end
    end
  end
  print(device, ok, places)
  -- expect: cpu	true	60
  -- expect: cuda	true	60
end

-- A norm adds its gradient to that of the residual stream, and a tied embedding its rows to the head's gradient.
do
  local table_, mix, index = flow.randn({ 11, 24 }, { seed = 20 }), flow.randn({ 24, 24 }, { seed = 21 }), flow.tensor({ 3, 7, 3, 11, 1, 3 }, "i64")
  local function gradients(device, norm)
    local w, m, s = table_:to(device):clone():requires_grad_(), mix:to(device):clone():requires_grad_(), scale:to(device):clone():requires_grad_()
    local x = w:embedding(index:to(device))
    for _ = 1, 2 do x = x + (norm == "rms" and x:rms_norm(s) or x:layer_norm(s)):linear(m):tanh() end
    x:linear(w):square():mean():backward()
    x = w:embedding(index:to(device)):layer_norm(s)
    x:square():mean():backward()  -- to gradients that are there
    return { w.grad, m.grad, s.grad }
  end
  for _, norm in ipairs { "layer", "rms" } do
    local a, b = gradients("cpu", norm), gradients("cuda", norm)
    print(norm, near(a[1], b[1], 1e-5), near(a[2], b[2], 1e-5), near(a[3], b[3], 1e-5))
    -- expect: layer	true	true	true
    -- expect: rms	true	true	true
  end
end

-- The precision of f32 products is that of the attempt.
print(flow.get_float32_matmul_precision())  -- expect: highest
flow.set_float32_matmul_precision("high")
print(flow.get_float32_matmul_precision(), why(flow.set_float32_matmul_precision, "low"))  -- expect: high	flow.set_float32_matmul_precision takes "highest", "high" or "medium", not "low"

-- The gradient is a part of the columns of a result that has padding: the other columns keep their content.
do
  local X, W, V = flow.randn({ 140, 16 }, { seed = 12 }), flow.randn({ 201, 16 }, { seed = 13 }), flow.randn({ 131, 16 }, { seed = 14 })
  local function backward(device)
    local big = X:to(device):linear(W:to(device))
    local v = V:to(device):requires_grad_()
    X:to(device):linear(v):backward(big:narrow(2, 1, 131))
    return big:to("cpu"), v.grad:to("cpu")
  end
  local big, grad = backward("cuda")
  local cpu_big, cpu_grad = backward("cpu")
  print(near(big, cpu_big, 1e-3), near(grad, cpu_grad, 1e-2))  -- expect: true	true
end
