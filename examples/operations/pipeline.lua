-- An operation of one's own: C source becomes a shared library, and a network trains with it.
--
--   flow run examples/operations
--
-- Edit softsign.c and run again: it is compiled anew, and what used it runs again.
local flow = require "flow"
local nn = flow.nn

local compile = flow.shell("compile", { args = { "source", "header" }, outputs = { library = "operations.so" },
  command = [[mkdir -p include/flow && cp {header} include/flow/operation.h
cc -std=c11 -O3 -shared -fPIC -Wall -Wextra -Werror -Iinclude {source} -o {outputs.library} -lm]] })

-- Learns sin(3x) from points, with softsign between the layers.
local train = flow.task("train", function(ctx, library, steps)
  local ops = flow.operations(library)
  local first, second = nn.linear(1, 32), nn.linear(32, 1)
  local x = flow.linspace(-1, 1, 200):reshape(-1, 1)
  local y = (x * 3):sin()
  local opt = flow.optim.adamw({ first.weight, first.bias, second.weight, second.bias }, { lr = 0.02 })
  local loss
  for step = 1, steps do
    loss = nn.mse_loss(second(ops.softsign(first(x) * 3)), y)
    opt:zero_grad()
    loss:backward()
    opt:step()
  end
  ctx:log("mean square error %.5f after %d steps", loss:item(), steps)
  return loss:item()
end)

return flow.pipeline("operations", {
  source = flow.param.path { default = "softsign.c" },
  header = flow.param.path { default = "../../engine/include/flow/operation.h", help = "flow/operation.h of the installation" },
  steps  = flow.param.int  { default = 400, min = 1 },
}, function(p)
  return train(compile(p.source, p.header).library, p.steps)
end)
