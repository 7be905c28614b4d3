-- A language model is trained on one text and adapted to another by adapters of low rank (LoRA): the weights stay as
-- they are, and a few thousand numbers beside them learn.
--
--   flow run examples/finetune --param special=mine.txt
local flow = require "flow"

-- Both texts in one alphabet.
local ingest = flow.task("ingest", function(ctx, base, special)
  local seen, letters, token_of = {}, {}, flow.zeros({ 256 }, "i64")
  for _, path in ipairs { base, special } do
    for letter in flow.fs.read(path):gmatch(".") do seen[letter:byte()] = true end
  end
  for byte = 0, 255 do
    if seen[byte] then
      letters[#letters + 1] = string.char(byte)
      token_of[byte + 1] = #letters
    end
  end
  local function tokens(path) return token_of[flow.data.raw(path, "u8", { flow.fs.size(path) }):to("i64") + 1] end
  local adapted = tokens(special)
  local cut = #adapted * 9 // 10
  return { letters = #letters, base = tokens(base), special = adapted[{ 1, cut }], test = adapted[{ cut + 1 }] }
end)

local function model_of(vocabulary, hp)
  return flow.models.gpt { vocabulary = vocabulary, context = hp.context, width = hp.width, heads = 4, layers = 2 }
end

local function fit(ctx, model, tokens, hp, steps, lr)
  local opt = flow.optim.adamw(model, { lr = lr })
  local loss
  for step = 1, steps do
    local starts = flow.randint(0, #tokens - hp.context - 1, { hp.batch, 1 }, { seed = ctx.seed + step })
    local index = (starts + flow.arange(hp.context):reshape(1, -1)):reshape(-1)
    loss = model:loss(tokens[index]:reshape(hp.batch, -1), tokens[index + 1]:reshape(hp.batch, -1))
    opt:zero_grad()
    loss:backward()
    opt:step()
    if step % 10 == 0 then ctx:progress(step / steps, { loss = loss:item() }) end
  end
end

local pretrain = flow.task("pretrain", function(ctx, data, hp)
  local model = model_of(data.letters, hp)
  fit(ctx, model, data.base, hp, hp.steps, 3e-3)
  return model:state()
end)

local adapt = flow.task("adapt", function(ctx, data, weights, hp)
  local model = flow.nn.lora(model_of(data.letters, hp):load(weights), { rank = 4, alpha = 8 })
  ctx:log("%d numbers learn", model:count())
  fit(ctx, model, data.special, hp, hp.adapt, 5e-3)
  return flow.nn.merge_lora(model):state()
end)

local function bits(model, tokens, hp)
  local total, count = 0, 0
  flow.no_grad(function()
    for first = 1, #tokens - hp.context, hp.context do
      local window = tokens[{ first, first + hp.context }]
      total = total + model:loss(window[{ 1, hp.context }]:reshape(1, -1), window[{ 2, hp.context + 1 }]:reshape(1, -1)):item()
      count = count + 1
    end
  end)
  return total / count / math.log(2)
end

local compare = flow.task("compare", function(ctx, data, before, after, hp)
  local out = {
    before = bits(model_of(data.letters, hp):load(before):eval(), data.test, hp),
    after = bits(model_of(data.letters, hp):load(after):eval(), data.test, hp),
  }
  ctx:log("%.3f bits a character before, %.3f after", out.before, out.after)
  return out
end)

return flow.pipeline("finetune", {
  base    = flow.param.path { default = "../data/shakespeare.txt", help = "the text that the model learns first" },
  special = flow.param.path { default = "../gpt/pipeline.lua", help = "the text that it is adapted to" },
  steps   = flow.param.int  { default = 200, min = 1 },
  adapt   = flow.param.int  { default = 200, min = 1, help = "steps of the adapters" },
  batch   = flow.param.int  { default = 16, min = 1 },
  context = flow.param.int  { default = 32, min = 1 },
  width   = flow.param.int  { default = 64, min = 4 },
}, function(p)
  local hp = { steps = p.steps, adapt = p.adapt, batch = p.batch, context = p.context, width = p.width }
  local data = ingest(p.base, p.special)
  local before = pretrain(data, hp)
  local after = adapt(data, before, hp)
  return compare(data, before, after, hp)
end)
