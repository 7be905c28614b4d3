-- Search over hyperparameters: train a small network for each, keep the best, train that one longer.
--
--   flow run examples/sweep --param lrs=0.001,0.003,0.01,0.03 --param widths=16,64
--
-- Add a value and run again: what was tried before comes from the cache.
local flow = require "flow"
local nn = flow.nn

local ingest = flow.task("ingest", function(ctx, path)
  local rows = flow.data.csv(path, { header = false })
  local x, y = rows:tensor(1, 64) / 16, rows:column(65) + 1
  local cut = #x * 4 // 5
  return { train = { x = x[{ 1, cut }], y = y[{ 1, cut }] }, test = { x = x[{ cut + 1 }], y = y[{ cut + 1 }] } }
end)

local function fit(ctx, data, hp, epochs)
  local model = nn.sequential { nn.linear(64, hp.width), nn.relu(), nn.linear(hp.width, 10) }
  local opt = flow.optim.adamw(model, { lr = hp.lr })
  for epoch = 1, epochs do
    for rows in flow.data.batches(#data.train.x, 50, ctx.seed + epoch) do
      local loss = nn.cross_entropy(model(data.train.x[rows]), data.train.y[rows])
      opt:zero_grad()
      loss:backward()
      opt:step()
    end
  end
  local predicted = flow.no_grad(model, data.test.x):argmax(2)
  return model, flow.metrics.accuracy(predicted, data.test.y)
end

local try = flow.task("try", function(ctx, hp, data, epochs)
  local _, accuracy = fit(ctx, data, hp, epochs)
  ctx:log("lr %g, width %d: %.4f", hp.lr, hp.width, accuracy)
  return { hp = hp, accuracy = accuracy }
end)

local pick = flow.task("pick", function(ctx, tried)
  local best = tried[1]
  for _, each in ipairs(tried) do
    if each.accuracy > best.accuracy then best = each end
  end
  return best
end)

local retrain = flow.task("retrain", function(ctx, hp, data, epochs)
  local model, accuracy = fit(ctx, data, hp, epochs)
  return { hp = hp, accuracy = accuracy, weights = model:state() }
end)

return flow.pipeline("sweep", {
  data   = flow.param.path { default = "../digits/digits.csv.gz", help = "rows of 64 pixels and a label" },
  lrs    = flow.param.list { of = "number", default = { 0.001, 0.003, 0.01 } },
  widths = flow.param.list { of = "int", default = { 16, 64 } },
  epochs = flow.param.int  { default = 3, min = 1, help = "of each try" },
  longer = flow.param.int  { default = 10, min = 1, help = "epochs of the best" },
}, function(p)
  local data = ingest(p.data)
  local points = {}
  for _, lr in ipairs(p.lrs) do
    for _, width in ipairs(p.widths) do points[#points + 1] = { lr = lr, width = width } end
  end
  if #points == 0 then
    error("the sweep has nothing to try: --param lrs and --param widths each need a value or more, as lrs=0.001,0.003")
  end
  local tried = flow.map(try, points, data, p.epochs)
  local best = pick(tried)
  return { tried = tried, best = retrain(best.hp, data, p.longer) }
end)
