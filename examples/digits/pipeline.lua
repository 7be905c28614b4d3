-- Handwritten digits: ingest, train, evaluate, serve.
--   flow run examples/digits --serve-for 20s
local flow = require "flow"

local function network(hidden)
  return flow.nn.sequential { flow.nn.linear(64, hidden), flow.nn.relu(), flow.nn.linear(hidden, 10) }
end

-- 64 pixels of 0..16 and a label of 0..9 a row. Classes count from 1 here, so a label is its column of the logits.
local ingest = flow.task("ingest", function(ctx, path)
  local rows = flow.data.csv(path, { header = false })
  local x, y = rows:tensor(1, 64) / 16, rows:column(65) + 1
  -- Every sixth row is kept for the test, so that training and test have digits from all over the file.
  local rest = {}
  for i = 1, #x do
    if i % 6 ~= 0 then rest[#rest + 1] = i end
  end
  rest = flow.tensor(rest, "i64")
  return { train = { x = x[rest],           y = y[rest] },
           test  = { x = x[{ 6, #x, 6 }],   y = y[{ 6, #x, 6 }] } }
end)

-- Minibatch AdamW. Each epoch ends with a checkpoint, so a killed run goes on from the last one.
local train = flow.task("train", { retries = 2 }, function(ctx, data, hp)
  local model = network(hp.hidden)
  local opt = flow.optim.adamw(model, { lr = hp.lr })
  local state = ctx:restore()
  if state then
    model:load(state.model)
    opt:load(state.opt)
  end
  for epoch = state and state.epoch + 1 or 1, hp.epochs do
    local total, batches = 0, 0
    for rows in flow.data.batches(#data.x, 50, ctx.seed ~ epoch) do   -- the same batches, whether resumed or not
      local loss, grad = flow.nn.cross_entropy(model:forward(data.x[rows]), data.y[rows])
      model:zero_grad()
      model:backward(grad)
      opt:step()
      total, batches = total + loss, batches + 1
    end
    ctx:checkpoint { epoch = epoch, model = model:state(), opt = opt:state() }
    ctx:progress(epoch / hp.epochs, { loss = total / batches })
    ctx:metric("loss", total / batches, epoch)
  end
  return { weights = model:state(), hidden = hp.hidden }
end)

-- Accuracy on rows the training never saw, and which digit is taken for which as a picture: rows are the true
-- digits 0..9 from above, columns the predicted ones, and dark is many.
local evaluate = flow.task("evaluate", function(ctx, model, test)
  local net = network(model.hidden)
  net:load(model.weights)
  local predicted = net:forward(test.x):argmax(2)
  local counts = flow.metrics.confusion(predicted, test.y, 10)
  local cell, pixels, most = 24, {}, 1
  for _, row in ipairs(counts) do
    for _, n in ipairs(row) do most = math.max(most, n) end
  end
  for y = 1, 10 * cell do
    pixels[y] = {}
    for x = 1, 10 * cell do
      local row, column = (y - 1) // cell + 1, (x - 1) // cell + 1
      local line = (y - 1) % cell == 0 or (x - 1) % cell == 0
      pixels[y][x] = line and 200 or 255 - math.floor(255 * (counts[row][column] / most) ^ 0.5)
    end
  end
  flow.image.png(ctx.dir .. "/confusion.png", flow.tensor(pixels, "u8"))
  local accuracy = flow.metrics.accuracy(predicted, test.y)
  ctx:log("accuracy %.4f on %d digits", accuracy, #test.x)
  return { accuracy = accuracy, confusion = counts, picture = ctx:file("confusion.png") }
end)

-- POST /v2/models/digits/infer with an input `pixels` [n, 64] of 0..1.
local digits = flow.service("digits", { port = 0, batch = { max = 32, wait = "2ms" } }, function(ctx, model)
  local net = network(model.hidden)
  net:load(model.weights)
  return {
    predict = function(inputs)
      local probabilities = net:forward(inputs.pixels):softmax()
      return { probabilities = probabilities, label = probabilities:argmax(2) - 1 }
    end,
  }
end)

return flow.pipeline("digits", {
  data   = flow.param.path   { default = "digits.csv.gz", help = "rows of 64 pixels and a label" },
  epochs = flow.param.int    { default = 30, min = 1 },
  hidden = flow.param.int    { default = 128, min = 1, help = "width of the hidden layer" },
  lr     = flow.param.number { default = 1e-2, min = 0 },
}, function(p)
  local data   = ingest(p.data)
  local model  = train(data.train, { epochs = p.epochs, hidden = p.hidden, lr = p.lr })
  local report = evaluate(model, data.test)
  digits(model):after(report)
  return { model = model, report = report }
end)
