-- A language model of characters: ingest text, train, evaluate, sample.
--
--   flow run examples/gpt                                            a small model, a few minutes
--   flow run examples/gpt --param text=mine.txt --param steps=2000   on your own text
--   flow run examples/gpt --param ranks=2                            the same training, each batch split between two ranks
--
-- Kill it while it trains, then `flow resume`: it continues from the last checkpoint and ends with the same weights.
local flow = require "flow"

-- Bytes become tokens 1..n, numbered by their occurrence; every tenth part of the text is kept for
-- the evaluation.
local ingest = flow.task("ingest", function(ctx, path, context)
  local text = flow.fs.read(path)
  if #text == 0 then error("the text is empty: pass another as --param text=FILE") end
  local seen = {}
  for i = 1, #text do seen[text:byte(i)] = true end
  local letters, token_of = {}, flow.zeros({ 256 }, "i64")
  for byte = 0, 255 do
    if seen[byte] then
      letters[#letters + 1] = string.char(byte)
      token_of[byte + 1] = #letters
    end
  end
  local tokens = token_of[flow.data.raw(path, "u8", { #text }):to("i64") + 1]
  local piece = math.max(#text // 100, 2)
  local train, test = {}, {}
  for i = 0, (#text - 1) // piece do
    local part = tokens[{ i * piece + 1, math.min((i + 1) * piece, #text) }]
    local side = i % 10 == 9 and test or train
    side[#side + 1] = part
  end
  local kept = 0
  for _, part in ipairs(test) do kept = kept + #part end
  if kept <= context then
    -- Ten parts out of a hundred are kept.
    local enough = math.ceil((context + 1) / 10) * 100
    error(("the text has %d characters, %d of them for the evaluation, and the model sees %d and the next one: pass a text "
      .. "of %d characters or more as --param text=FILE, or a smaller --param context"):format(#text, kept, context, enough))
  end
  return { letters = letters, train = flow.cat(train), test = flow.cat(test) }
end)

local function model_of(vocabulary, hp)
  return flow.models.gpt { vocabulary = vocabulary, context = hp.context, width = hp.width, heads = hp.heads,
    layers = hp.layers, dropout = hp.dropout }
end

-- Windows of the text at places that the step and the seed give, so that a resumed run sees what it would have seen.
local function batch(tokens, hp, seed)
  local starts = flow.randint(0, #tokens - hp.context - 1, { hp.batch, 1 }, { seed = seed })
  local index = (starts + flow.arange(hp.context):reshape(1, -1)):reshape(-1)
  local x = tokens[index]:reshape(hp.batch, hp.context)
  local y = tokens[index + 1]:reshape(hp.batch, hp.context)
  return x, y
end

local train = flow.task("train", { retries = 2 }, function(ctx, data, hp)
  if hp.batch % ctx.ranks ~= 0 then
    error(("a batch of %d does not divide by %d ranks: pass another as --param batch=N"):format(hp.batch, ctx.ranks))
  end
  local part = hp.batch // ctx.ranks
  local own = { ctx.rank * part + 1, (ctx.rank + 1) * part }
  local seed = ctx.comm:broadcast(ctx.seed)                        -- of the batches: one for all ranks
  local model = flow.nn.data_parallel(model_of(#data.letters, hp), ctx.comm)
  local opt = flow.optim.adamw(model, { lr = hp.lr, weight_decay = 0.1, beta2 = 0.99 })
  local rate = flow.optim.cosine { lr = hp.lr, warmup = hp.steps // 20, total = hp.steps + 1, min_lr = hp.lr / 10 }
  local state = ctx:restore()
  if state then
    model:load(state.model)
    opt:load(state.opt)
  end
  ctx:log("%d parameters", model:count())
  for step = state and state.step + 1 or 1, hp.steps do
    math.randomseed(ctx.seed + step)                               -- dropout, too, is the step's, and each rank's own
    local x, y = batch(data.train, hp, seed + step)
    local loss = model:loss(x[own], y[own])
    opt:zero_grad()
    loss:backward()
    flow.optim.clip_grad_norm(model, 1)
    opt:set_lr(rate(step))
    opt:step()
    if step % 10 == 0 or step == hp.steps then
      local mean = ctx.comm:all_reduce(loss:item(), "mean")
      ctx:progress(step / hp.steps, { loss = mean })
      ctx:metric("loss", mean, step)
    end
    if step % hp.every == 0 then ctx:checkpoint { step = step, model = model:state(), opt = opt:state() } end
  end
  return model:state()
end)

-- Bits a character on text that the training never saw: how well the model would compress it.
local evaluate = flow.task("evaluate", function(ctx, data, weights, hp)
  local model = model_of(#data.letters, hp):load(weights):eval()
  local total, count = 0, 0
  flow.no_grad(function()
    for first = 1, #data.test - hp.context, hp.context do
      local window = data.test[{ first, first + hp.context }]
      total = total + model:loss(window[{ 1, hp.context }]:reshape(1, -1), window[{ 2, hp.context + 1 }]:reshape(1, -1)):item()
      count = count + 1
    end
  end)
  local bits = total / count / math.log(2)
  ctx:log("%.3f bits a character on %d characters", bits, count * hp.context)
  return { bits = bits, characters = count * hp.context }
end)

local sample = flow.task("sample", function(ctx, data, weights, hp)
  local model = model_of(#data.letters, hp):load(weights)
  local tokens = model:generate({ data.test[1] }, hp.letters, { temperature = 0.8, top = 40, seed = ctx.seed % 1000003 })
  local out = {}
  for i, token in ipairs(tokens) do out[i] = data.letters[token] end
  local text = table.concat(out)
  ctx:log("%s", text)
  return text
end)

return flow.pipeline("gpt", {
  text    = flow.param.path   { default = "../data/shakespeare.txt", help = "any text" },
  steps   = flow.param.int    { default = 400, min = 1 },
  batch   = flow.param.int    { default = 16, min = 1 },
  context = flow.param.int    { default = 64, min = 1, help = "characters that the model sees" },
  width   = flow.param.int    { default = 96, min = 1 },
  heads   = flow.param.int    { default = 4, min = 1 },
  layers  = flow.param.int    { default = 3, min = 1 },
  dropout = flow.param.number { default = 0, min = 0, max = 1 },
  lr      = flow.param.number { default = 2e-3, min = 0 },
  ranks   = flow.param.int    { default = 1, min = 1, max = 8, help = "that share the training" },
  every   = flow.param.int    { default = 50, min = 1, help = "steps from checkpoint to checkpoint" },
  letters = flow.param.int    { default = 300, min = 0, help = "of the sample" },
}, function(p)
  local hp = { steps = p.steps, batch = p.batch, context = p.context, width = p.width, heads = p.heads,
    layers = p.layers, dropout = p.dropout, lr = p.lr, every = p.every }
  local size = { context = p.context, width = p.width, heads = p.heads, layers = p.layers, dropout = p.dropout }
  local data = ingest(p.text, p.context)
  local weights = train:with { ranks = p.ranks }(data, hp)
  return {
    weights = weights,
    report = evaluate(data, weights, size),
    sample = sample(data, weights, { context = p.context, width = p.width, heads = p.heads, layers = p.layers,
      dropout = p.dropout, letters = p.letters }),
  }
end)
