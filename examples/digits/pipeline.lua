-- Handwritten digits, from a file to a service: ingest, train, evaluate, serve.
--
--   flow run examples/digits --serve-for 20s
--
-- Run it twice: the second run takes everything from the cache and only serves. Change `lr` and training runs again,
-- but not the ingest. Press Ctrl-C while it trains, then `flow resume`: it continues from the last epoch.
local flow = require "flow"

-- Three tasks build the same network, so it has one definition. Editing it re-runs what uses it.
local nn = flow.nn

-- The 64 pixels of a row as a picture of one channel.
local Picture = nn.class("Picture")
function Picture:forward(x) return x:reshape(-1, 1, 8, 8) end

local function network(hp)
  if hp.network == "dense" then
    return nn.sequential { nn.linear(64, hp.hidden), nn.relu(), nn.linear(hp.hidden, 10) }
  end
  return nn.sequential {
    Picture(), nn.conv2d(1, 16, 3, { padding = 1 }), nn.relu(), nn.max_pool2d(2),
    nn.conv2d(16, 32, 3, { padding = 1 }), nn.relu(), nn.max_pool2d(2),
    nn.flatten(), nn.linear(32 * 2 * 2, hp.hidden), nn.relu(), nn.linear(hp.hidden, 10),
  }
end

-- A row of the file is 64 pixels of 0..16 and a label of 0..9. Classes count from 1 in Lua, so digit d is class d + 1.
-- Every sixth row is kept for the test: people wrote one after the other, so the test has digits of all of them.
local ingest = flow.task("ingest", function(ctx, path)
  local rows = flow.data.csv(path, { header = false })
  local x, y = rows:tensor(1, 64) / 16, rows:column(65) + 1
  local others = flow.tensor(flow.table.filter(flow.table.range(#x), function(i) return i % 6 ~= 0 end))
  return { train = { x = x[others],         y = y[others] },
           test  = { x = x[{ 6, #x, 6 }],   y = y[{ 6, #x, 6 }] } }
end)

-- The images and the same again one pixel up, down, left and right: a digit is the same digit wherever it stands.
local function with_shifts(data)
  local images = data.x:reshape(-1, 8, 8)
  local up, down, left, right = images * 0, images * 0, images * 0, images * 0
  up[{ {}, { 1, 7 } }]        = images[{ {}, { 2, 8 } }]
  down[{ {}, { 2, 8 } }]      = images[{ {}, { 1, 7 } }]
  left[{ {}, {}, { 1, 7 } }]  = images[{ {}, {}, { 2, 8 } }]
  right[{ {}, {}, { 2, 8 } }] = images[{ {}, {}, { 1, 7 } }]
  return flow.cat { images, up, down, left, right }:reshape(-1, 64),
         flow.cat { data.y, data.y, data.y, data.y, data.y }
end

-- Minibatch AdamW. Each epoch ends with a checkpoint, so a killed run continues from the last one;
-- `retries` covers failures of the training itself.
local train = flow.task("train", { retries = 2 }, function(ctx, data, hp)
  local x, y = with_shifts(data)
  local model = network(hp)
  local opt = flow.optim.adamw(model, { lr = hp.lr })
  local state = ctx:restore()                                    -- nil on the first attempt
  if state then
    model:load(state.model)
    opt:load(state.opt)
  end
  for epoch = state and state.epoch + 1 or 1, hp.epochs do
    local total, batches = 0, 0
    for rows in flow.data.batches(#x, 50, ctx.seed + epoch) do   -- the same batches, whether resumed or not
      local loss = nn.cross_entropy(model(x[rows]), y[rows])
      opt:zero_grad()
      loss:backward()
      opt:step()
      total, batches = total + loss:item(), batches + 1
    end
    ctx:checkpoint { epoch = epoch, model = model:state(), opt = opt:state() }
    ctx:progress(epoch / hp.epochs, { loss = total / batches })
    ctx:metric("loss", total / batches, epoch)
  end
  return { weights = model:state(), network = hp.network, hidden = hp.hidden }
end)

-- Accuracy on rows that the training never used, and an image of which digit is classified as
-- which. `flow get last report -o results` copies it out of the state.
local evaluate = flow.task("evaluate", function(ctx, model, test)
  local net = network(model):load(model.weights)
  local predicted = flow.no_grad(net, test.x):argmax(2)
  local accuracy = flow.metrics.accuracy(predicted, test.y)
  local counts = flow.metrics.confusion(predicted, test.y, 10)
  flow.image.png(ctx.dir .. "/confusion.png", flow.metrics.confusion_image(counts, 0))
  ctx:log("accuracy %.4f on %d digits", accuracy, #test.x)
  return { accuracy = accuracy, confusion = ctx:file("confusion.png"), counts = counts }
end)

-- POST /v2/models/digits/infer with an input `pixels` [n, 64] as in the file: 0..16. `port = 0` takes any free port.
-- A new version of a run with a name gets 10%, 50% and all of the requests; if more than 1% of them fail, it is given up.
local digits = flow.service("digits", {
  port = 0, batch = { max = 32 },
  warmup = { pixels = flow.zeros { 1, 64 } },
  canary = { 10, 50, 100, every = "1s", max_error_rate = 0.01 },
}, function(ctx, model)
  local net = network(model):load(model.weights)
  return {
    predict = function(inputs)
      local probabilities = flow.no_grad(net, inputs.pixels / 16):softmax()
      return { probabilities = probabilities, label = probabilities:argmax(2) - 1 }
    end,
  }
end)

return flow.pipeline("digits", {
  data   = flow.param.path   { default = "digits.csv.gz", help = "rows of 64 pixels and a label" },
  epochs = flow.param.int    { default = 20, min = 1 },
  network = flow.param.choice { "dense", "conv", default = "dense" },
  hidden = flow.param.int    { default = 128, min = 1, help = "width of the hidden layer" },
  lr     = flow.param.number { default = 3e-3, min = 0 },
}, function(p)
  local data   = ingest(p.data)
  local model  = train(data.train, { epochs = p.epochs, network = p.network, hidden = p.hidden, lr = p.lr })
  local report = evaluate(model, data.test)
  digits(model):after(report)
  return { model = model, report = report }
end)
