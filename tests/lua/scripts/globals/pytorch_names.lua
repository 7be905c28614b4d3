-- mode: load
local flow = require "flow"
local function why(library, name)
  local ok, text = pcall(function() return library[name] end)
  print(not ok and text:match(": (.*)") or text)
end
why(flow.nn, "Linear")            -- expect: flow.nn has no `Linear`: here it is `linear`
why(flow.nn, "LayerNorm")         -- expect: flow.nn has no `LayerNorm`: here it is `layer_norm`
why(flow.nn, "CrossEntropyLoss")  -- expect: flow.nn has no `CrossEntropyLoss`: here it is `cross_entropy`
why(flow.nn, "MSELoss")           -- expect: flow.nn has no `MSELoss`: here it is `mse_loss`
why(flow.optim, "SGD")            -- expect: flow.optim has no `SGD`: here it is `sgd`
why(flow.optim, "Adam")           -- expect: flow.optim has no `Adam`: here it is `adamw`, with `weight_decay = 0`
why(flow.nn, "Module")            -- expect: flow.nn has no `Module`: write `flow.nn.class("Name")` for a class of your own
why(flow.nn, "functional")        -- expect: flow.nn has no `functional`: its functions are methods of tensors, such as `x:relu()`, and losses are in flow.nn
why(flow.data, "DataLoader")      -- expect: flow.data has no `DataLoader`: here it is `loader`
why(flow, "Tensor")               -- expect: flow has no `Tensor`: here it is `tensor`
why(flow, "randN")                -- expect: flow has no `randN`: here it is `randn`
why(flow.nn, "linaer")            -- expect: flow.nn has no `linaer` (did you mean `linear`?)
why(flow.metrics, "acuracy")      -- expect: flow.metrics has no `acuracy` (did you mean `accuracy`?)
why(flow.fs, "reed")              -- expect: flow.fs has no `reed` (did you mean `read`?)
print(pcall(function() return flow.nn.liner(3, 4) end))  -- expect: false	pytorch_names.lua:21: flow.nn has no `liner` (did you mean `linear`?)
print(pcall(function() return torch.nn.Linear(3, 4) end))  -- expect: false	pytorch_names.lua:22: undefined global `torch`; PyTorch's names are in flow: `flow.nn`, `flow.optim`, `flow.zeros`, and methods of tensors; write `local flow = require "flow"`
