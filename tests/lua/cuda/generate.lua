-- Generation with a cache on a GPU, here the emulator, draws what it draws without one, and what the CPU draws.
local function made(options)
  local model = flow.models.gpt(options)
  flow.no_grad(function()
    for i, each in ipairs(model:parameters()) do each:copy_(flow.randn(each.shape, { seed = i }) * 0.4) end
  end)
  return model
end
local function joined(tokens) return table.concat(tokens, " ") end

for _, rotary in ipairs { false, true } do
  local options = { vocabulary = 23, context = 40, width = 32, heads = 4, layers = 2, rotary = rotary }
  local model, prompt = made(options), flow.randint(1, 23, { 30 }, { seed = 2 })
  local on_cpu = joined(model:generate(prompt, 12, { temperature = 0 }))
  model:to("cuda")
  -- To the end of the context and beyond it; from a prompt on either device.
  local cached = joined(model:generate(prompt, 12, { temperature = 0 }))
  print(cached == on_cpu, cached == joined(model:generate(prompt:to("cuda"), 12, { temperature = 0, cache = false })))  -- expect: true	true
  cached = joined(model:generate({ 5 }, 9, { seed = 3, top = 5 }))
  print(cached == joined(model:generate({ 5 }, 9, { seed = 3, top = 5, cache = false })))  -- expect: true
  local several = model:generate({ { 1, 2 }, { 3, 4 } }, 5, { temperature = 0 })
  print(#several, #several[1], joined(several[2]) == joined(model:generate({ 3, 4 }, 5, { temperature = 0 })))  -- expect: 2	5	true
end
-- expect: true	true
-- expect: true
-- expect: 2	5	true

-- In bf16 the cache is bf16, and the logits are those of whole windows within its rounding.
local model = made { vocabulary = 23, context = 40, width = 32, heads = 4, layers = 2 }:to("cuda")
local index, cache = flow.randint(1, 23, { 2, 20 }, { seed = 4, device = "cuda" }), flow.nn.kv_cache(20)
flow.no_grad(flow.autocast, "bf16", function()
  local want = model(index):to("f32")
  model(index:narrow(2, 1, 17), cache)
  local few, one = model(index:narrow(2, 18, 2), cache):to("f32"), model(index:narrow(2, 20, 1), cache):to("f32")
  local scale = want:abs():max()
  print((few - want:narrow(2, 18, 2)):abs():max() < 0.03 * scale, (one - want:narrow(2, 20, 1)):abs():max() < 0.03 * scale)  -- expect: true	true
end)
print(#model:generate(flow.tensor { 1, 2 }, 9, { dtype = "bf16", seed = 1 }))  -- expect: 9
