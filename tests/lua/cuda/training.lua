-- Models on a GPU, here the emulator, learn what they learn on the CPU.
local size = { vocabulary = 11, context = 8, width = 16, heads = 2, layers = 2 }
local function near(a, b) return math.abs(a - b) <= 1e-4 * math.max(1, math.abs(b)) end
local function batch(seed, device)
  return flow.randint(1, 11, { 2, 8 }, { seed = seed, device = device }), flow.randint(1, 11, { 2, 8 }, { seed = seed + 1, device = device })
end
local function train(model, device, opt, steps, cast)
  local losses = {}
  for step = 1, steps do
    local x, y = batch(step, device)
    local loss = flow.autocast(cast or "f32", function() return model:loss(x, y) end)
    opt:zero_grad()
    loss:backward()
    flow.optim.clip_grad_norm(model:parameters(), 1)
    opt:step()
    losses[step] = loss:item()
  end
  return losses
end
local model = flow.models.gpt(size)
local twin = flow.models.gpt(size)
twin:load(model:state())
twin:to("cuda")
print(twin:parameters()[1].device, model:parameters()[1].device)  -- expect: cuda:0	cpu
local own, others = flow.optim.adamw(model, { lr = 0.01 }), flow.optim.adamw(twin, { lr = 0.01 })
local cpu, gpu = train(model, "cpu", own, 4), train(twin, "cuda", others, 4)
local same = true
for i = 1, 4 do same = same and near(cpu[i], gpu[i]) end
print(same, cpu[4] < cpu[1] + 1)  -- expect: true	true
-- A state that was saved on one device continues on the other.
local third = flow.models.gpt(size)
third:load(twin:state())
local on_cpu = flow.optim.adamw(third, { lr = 0.01 })
on_cpu:load(others:state())
print(near(train(third, "cpu", on_cpu, 1)[1], train(twin, "cuda", others, 1)[1]))  -- expect: true
ctx:checkpoint { model = twin:state(), opt = others:state() }
print(#twin:generate({ 1, 2 }, 3, { seed = 1 }), near(train(twin, "cuda", others, 1, "bf16")[1], 2.4) ~= nil)  -- expect: 3	true

-- Activation checkpoints, adapters, and the layers of an image network.
local long = flow.models.gpt { vocabulary = 11, context = 8, width = 16, heads = 2, layers = 2, dropout = 0.1, rotary = true, checkpoint = true }:to("cuda")
flow.nn.lora(long, { rank = 2, targets = { "attention" } })
local losses = train(long, "cuda", flow.optim.sgd(long, { lr = 0.1, momentum = 0.9 }), 2)
flow.nn.merge_lora(long)
print(#losses, long.blocks[1].attention.out.weight.device)  -- expect: 2	cuda:0
local net = flow.nn.sequential { flow.nn.conv2d(1, 2, 3), flow.nn.relu(), flow.nn.max_pool2d(2), flow.nn.flatten(), flow.nn.linear(18, 3) }
local pictures, labels = flow.randn({ 2, 1, 8, 8 }, { seed = 1 }), flow.tensor { 1, 3 }
flow.nn.cross_entropy(net(pictures), labels):backward()
local wanted = net:parameters()[1].grad
net:zero_grad()
net:to("cuda")
flow.nn.cross_entropy(net(pictures:to("cuda")), labels:to("cuda")):backward()
print((net:parameters()[1].grad:to("cpu") - wanted):abs():max() < 1e-5)  -- expect: true

-- Attention of whole blocks of rows, which cuDNN takes if the executor has it: twice, because its first results are checked.
local function attend(device)
  local function random(seed) return flow.randn({ 1, 2, 64, 16 }, { seed = seed }):to("bf16"):to(device):requires_grad_() end
  local q, k, v = random(1), random(2), random(3)
  local out = q:attention(k, v, { causal = true })
  out:to("f32"):square():sum():backward()
  return { out, q.grad, k.grad, v.grad }
end
local expected, apart = attend("cpu"), 0
for time = 1, 2 do
  for i, each in ipairs(attend("cuda")) do
    local is, due = each:detach():to("cpu"):to("f32"), expected[i]:detach():to("f32")
    apart = apart + (is - due):square():sum() / due:square():sum()
  end
end
print(apart < 1e-3)  -- expect: true
