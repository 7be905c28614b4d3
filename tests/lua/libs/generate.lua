-- Generation with a cache of keys and values draws the tokens that computing every window anew does.
local nn = flow.nn

local function why(f, ...) print((select(2, pcall(f, ...)):gsub("^.-:%d+: ", ""))) end

-- A model whose logits differ enough to be told apart.
local function made(options)
  local model = flow.models.gpt(options):to("f64")
  flow.no_grad(function()
    for i, each in ipairs(model:parameters()) do each:copy_(flow.randn(each.shape, { dtype = "f64", seed = i }) * 0.4) end
  end)
  return model
end
local function joined(tokens) return table.concat(tokens, " ") end

-- The number of tokens that each call computes.
local function count_tokens(model)
  local counts, embed = {}, nn.embedding.forward
  function nn.embedding:forward(index)
    if self == model.tokens then counts[#counts + 1] = index:size(2) end
    return embed(self, index)
  end
  return counts
end

local same, distinct = 0, {}
for _, rotary in ipairs { false, true } do
  for _, tied in ipairs { true, false } do
    local model = made { vocabulary = 23, context = 12, width = 16, heads = 4, layers = 2, tied = tied, rotary = rotary }
    for _, options in ipairs { { temperature = 0 }, { seed = 5 }, { seed = 6, top = 3, temperature = 0.7 } } do
      -- Within the context, to its last position, beyond it, from a full one, and from a longer prompt.
      for _, each in ipairs { { 1, 6 }, { 5, 8 }, { 5, 20 }, { 12, 3 }, { 15, 4 }, { 11, 0 } } do
        local prompt = flow.randint(1, 23, { each[1] }, { seed = 40 + each[1] }):table()
        local cached = joined(model:generate(prompt, each[2], options))
        options.cache = false
        same = same + (cached == joined(model:generate(prompt, each[2], options)) and 1 or 0)
        options.cache = nil
        distinct[cached] = true
      end
    end
  end
end
local kinds = 0
for _ in pairs(distinct) do kinds = kinds + 1 end
print(same, kinds > 40)  -- expect: 72	true

-- The prompt is computed once, then one token each, and whole windows once the context is full.
local model = made { vocabulary = 23, context = 8, width = 16, heads = 4, layers = 2, dropout = 0.5 }
local counts = count_tokens(model)
local tokens = model:generate({ 1, 2, 3, 4 }, 7, { seed = 1 })
print(joined(counts), model.training, model.blocks[2].dropout.training)  -- expect: 4 1 1 1 1 8 8	true	true
print(joined(model:generate(flow.tensor { 1, 2, 3, 4 }, 7, { seed = 1 })) == joined(tokens))  -- expect: true

-- Several prompts of one length; the first draws what it draws alone.
local several = model:generate({ { 1, 2, 3, 4 }, { 5, 6, 7, 8 } }, 7, { seed = 1 })
print(#several, joined(several[1]) == joined(tokens), #several[2])  -- expect: 2	true	7
local greedy = { temperature = 0 }
several = model:generate(flow.tensor { { 1, 2, 3 }, { 5, 6, 7 } }, 9, greedy)
print(joined(several[1]) == joined(model:generate({ 1, 2, 3 }, 9, greedy)), joined(several[2]) == joined(model:generate({ 5, 6, 7 }, 9, greedy)))  -- expect: true	true
print(#model:generate({ { 1 }, { 2 }, { 3 } }, 0))  -- expect: 3

-- Adapters are computed token by token; a block of another class may depend on all tokens, so its windows are computed.
local adapted = made { vocabulary = 23, context = 12, width = 16, heads = 4, layers = 2, rotary = true }
nn.lora(adapted, { rank = 2, targets = { "attention" } })
flow.no_grad(function() adapted.blocks[1].attention.qkv.up:fill_(0.3) end)
counts = count_tokens(adapted)
local cached = joined(adapted:generate({ 3, 4 }, 6, greedy))
print(joined(counts), cached == joined(adapted:generate({ 3, 4 }, 6, { temperature = 0, cache = false })))  -- expect: 2 1 1 1 1 1	true
local Mean = nn.class("Mean")
function Mean:forward(x) return x + x:mean(2, true) end
local other = made { vocabulary = 23, context = 12, width = 16, heads = 4, layers = 2 }
other.blocks[2] = Mean()
counts = count_tokens(other)
other:generate({ 3, 4 }, 4)
print(joined(counts))  -- expect: 2 3 4 5

-- Products in a half type.
local plain = flow.models.gpt { vocabulary = 23, context = 12, width = 16, heads = 4, layers = 2 }
local half = joined(plain:generate({ 1, 2 }, 8, { temperature = 0, dtype = "bf16" }))
print(half == joined(flow.autocast("bf16", function() return plain:generate({ 1, 2 }, 8, greedy) end)))  -- expect: true

-- A cache of one's own: the logits of any parts are those of all tokens.
local function largest(x) return (x:abs():max()) end
for _, rotary in ipairs { false, true } do
  local whole = made { vocabulary = 23, context = 12, width = 16, heads = 4, layers = 2, rotary = rotary }
  local index = flow.randint(1, 23, { 2, 10 }, { seed = 3 })
  flow.no_grad(function()
    local want, cache, worst = whole(index), flow.nn.kv_cache(10), 0
    for _ = 1, 2 do
      local first = 1
      for _, count in ipairs { 4, 1, 3, 2 } do
        local found = whole(index:narrow(2, first, count), cache)
        worst = math.max(worst, largest(found - want:narrow(2, first, count)))
        first = first + count
      end
      print(cache.length, worst < 1e-12)  -- expect: 10	true
      cache:clear()  -- expect: 10	true
    end
  end)  -- expect: 10	true
end  -- expect: 10	true
local block = nn.transformer_block(12, 6, { groups = 2, rotary = true, norm = "rms", activation = "silu" }):to("f64")
flow.no_grad(function()
  local x, cache = flow.randn({ 3, 7, 12 }, "f64"), nn.kv_cache(7)
  local parts = flow.cat({ block(x:narrow(2, 1, 5), cache), block(x:narrow(2, 6, 1), cache), block(x:narrow(2, 7, 1), cache) }, 2)
  print(largest(parts - block(x)) < 1e-12)  -- expect: true
end)

-- Errors.
local small = flow.models.gpt { vocabulary = 5, context = 6, width = 8, heads = 2, layers = 1 }
local function fed(cache, count, rows)
  return function() return flow.no_grad(small, flow.ones({ rows or 1, count }, "i64"), cache) end
end
local cache = nn.kv_cache(3)
fed(cache, 2)()
why(fed(cache, 2))  -- expect: this cache has room for 3 positions, not 4
why(fed(cache, 1, 2))  -- expect: this cache holds 1 sequences, not 2: one cache is for one batch
cache = nn.kv_cache(9)
fed(cache, 6)()
why(fed(cache, 1))  -- expect: this model accepts 6 tokens at most, not 7
local twice = flow.models.gpt { vocabulary = 5, context = 6, width = 8, heads = 2, layers = 2 }
twice.blocks[2] = twice.blocks[1]
print(joined(twice:generate({ 1, 2 }, 3, greedy)) == joined(twice:generate({ 1, 2 }, 3, { temperature = 0, cache = false })))  -- expect: true
why(flow.no_grad, twice, flow.ones({ 1, 2 }, "i64"), nn.kv_cache(3))  -- expect: this cache holds 2 positions for block 2 and 0 for the model: clear it after a call that failed, or the model uses one block twice
local Shift = nn.class("Shift")  -- each position and the one before it
function Shift:forward(x) return x + flow.cat({ x:narrow(2, 1, 1) * 0, x:narrow(2, 1, x:size(2) - 1) }, 2) end
for _, place in ipairs { "up", "norm1" } do
  local shifted = made { vocabulary = 23, context = 12, width = 16, heads = 4, layers = 2 }
  shifted.blocks[1][place] = nn.sequential { Shift(), shifted.blocks[1][place] }
  print(joined(shifted:generate({ 3, 4 }, 6, greedy)) == joined(shifted:generate({ 3, 4 }, 6, { temperature = 0, cache = false })))  -- expect: true
end  -- expect: true
local saving = flow.models.gpt { vocabulary = 5, context = 6, width = 8, heads = 2, layers = 1, checkpoint = true }
cache = nn.kv_cache(3)
flow.no_grad(saving, flow.ones({ 1, 2 }, "i64"), cache)  -- in training mode
print(cache.length)  -- expect: 2
why(small, flow.ones({ 1, 1 }, "i64"), nn.kv_cache(3))  -- expect: attention with a cache records no gradients: call it in flow.no_grad
why(nn.attention(8, 2), flow.ones(1, 1, 8), nn.kv_cache(3))  -- expect: attention with a cache is causal: flow.nn.attention(width, heads, { causal = true })

why(fed({}, 1))  -- expect: model(tokens, cache) takes a cache, flow.nn.kv_cache(positions), not a table
cache = nn.kv_cache(3)
fed(cache, 2)()
fed(cache:clear(), 2, 3)()
print(cache.length)  -- expect: 2
why(nn.kv_cache, 0)  -- expect: flow.nn.kv_cache takes sizes, integers of 1 or more: flow.nn.kv_cache(1024)
why(small.generate, small, {}, 1)  -- expect: model:generate takes a prompt of at least one token
why(small.generate, small, { { 1, 2 }, { 1 } }, 1)  -- expect: model:generate takes several prompts only if they have as many tokens each, not 2 and 1
why(small.generate, small, { 1, { 2 } }, 1)  -- expect: flow.tensor takes nested lists of one length each: the list[2] is a table, not a number or a boolean
why(small.generate, small, { 1.5 }, 1)  -- expect: model:generate takes tokens, which are integers, not numbers of f32
why(small.generate, small, flow.ones({ 1, 1, 2 }, "i64"), 1)  -- expect: model:generate takes a prompt of one dimension, or prompts of two, not of 3
why(small.generate, small, { 1 }, 1, { cache = 1 })  -- expect: model:generate: the option `cache` is true or false, not 1
why(small.generate, small, { 1 }, 1, { dtype = "f64" })  -- expect: model:generate: the option `dtype` is "f32", "bf16" or "f16", not f64
