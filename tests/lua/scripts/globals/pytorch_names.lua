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
why(flow.optim, "Adam")           -- expect: flow.optim has no `Adam` (did you mean `adamw`?)
why(flow.nn, "linaer")            -- expect: nil
