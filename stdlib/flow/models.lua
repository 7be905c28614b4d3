-- Complete models, built from flow.nn.
local flow = require "flow"
local nn = flow.nn

local models = {}

---- a language model: decoder-only transformer, as in GPT-2

local Gpt = nn.class("Gpt")

local defaults = { vocabulary = false, context = 64, width = 64, heads = 4, layers = 2, dropout = 0, tied = true,
  rotary = false, checkpoint = false }

-- flow.models.gpt { vocabulary =, context =, width =, heads =, layers =, dropout =, tied =, rotary =, checkpoint = }
function Gpt:init(options)
  if options ~= nil and type(options) ~= "table" then
    error("flow.models.gpt takes its options as a table, flow.models.gpt { vocabulary = 65 }, not a " .. type(options), 3)
  end
  local given = {}
  for name, value in pairs(defaults) do given[name] = value end
  for name, value in pairs(options or {}) do
    if defaults[name] == nil then
      error("flow.models.gpt has no option `" .. tostring(name) .. "`: there are vocabulary, context, width, heads, "
        .. "layers, dropout, tied, rotary and checkpoint", 3)
    end
    given[name] = value
  end
  if math.type(given.vocabulary) ~= "integer" then
    error("flow.models.gpt needs the number of tokens: flow.models.gpt { vocabulary = 65 }", 3)
  end
  self._options = given
  self.tokens = nn.embedding(given.vocabulary, given.width)
  if not given.rotary then self.positions = nn.embedding(given.context, given.width) end
  self.dropout = nn.dropout(given.dropout)
  self.blocks = {}
  for i = 1, given.layers do
    self.blocks[i] = nn.transformer_block(given.width, given.heads, { dropout = given.dropout, rotary = given.rotary })
  end
  self.norm = nn.layer_norm(given.width)
  if not given.tied then self.head = nn.linear(given.width, given.vocabulary, { bias = false }) end
  -- As in GPT-2: normal with 0.02, projections onto the residual stream smaller by the number of layers, biases 0.
  flow.no_grad(function()
    local function set(tensor, deviation) tensor:copy_(flow.randn(tensor.shape) * deviation) end
    for _, each in ipairs(self:named_parameters()) do
      if each.tensor:dims() == 2 then
        local into_stream = each.name:find("attention.out.", 1, true) or each.name:find(".down.", 1, true)
        set(each.tensor, into_stream and 0.02 / math.sqrt(2 * given.layers) or 0.02)
      elseif each.name:sub(-5) == ".bias" then
        each.tensor:zero_()
      end
    end
  end)
end

-- Logits [batch, t, vocabulary] of tokens [batch, t], 1..vocabulary.
function Gpt:forward(index)
  local options = self._options
  local t = index:size(2)
  if t > options.context then
    error("this model accepts " .. options.context .. " tokens at most, not " .. t, 2)
  end
  local x = self.tokens(index)
  if self.positions then x = x + self.positions(flow.arange(t, index.device)) end
  x = self.dropout(x)
  for _, block in ipairs(self.blocks) do
    x = options.checkpoint and self.training and flow.checkpoint(block, x) or block(x)
  end
  x = self.norm(x, true)
  if self.head then return self.head(x) end
  return x:linear(self.tokens.weight)
end

-- The mean cross entropy of `targets` [batch, t], in nats per token.
function Gpt:loss(index, targets)
  local logits = self(index)
  return nn.cross_entropy(logits:reshape(-1, logits:size(3)), targets:reshape(-1))
end

local generate_options = { temperature = true, top = true, seed = true }

local function check_generate(prompt, count, options)
  if #prompt == 0 then error("model:generate takes a prompt of at least one token", 3) end
  if math.type(count) ~= "integer" or count < 0 then
    error("model:generate takes a number of tokens, a whole number, not " .. tostring(count), 3)
  end
  if options ~= nil and type(options) ~= "table" then
    error("model:generate takes its options as a table, { temperature = … }, not a " .. type(options), 3)
  end
  for name in pairs(options or {}) do
    if not generate_options[name] then
      error("model:generate has no option `" .. tostring(name) .. "`: there are seed, temperature and top", 3)
    end
  end
  local given = options or {}
  if given.top ~= nil and (math.type(given.top) ~= "integer" or given.top < 1) then
    error("model:generate: the option `top` is a whole number of 1 or more, not " .. tostring(given.top), 3)
  end
  if given.seed ~= nil and math.type(given.seed) ~= "integer" then
    error("model:generate: the option `seed` is a whole number, not " .. tostring(given.seed), 3)
  end
  if given.temperature ~= nil and (type(given.temperature) ~= "number" or not (given.temperature >= 0)) then
    error("model:generate: the option `temperature` is a number of 0 or more, not " .. tostring(given.temperature), 3)
  end
  return given
end

-- Generates `count` tokens after `prompt` (a list, or a tensor of one dimension): a list. Options: temperature (1), top
-- (samples from the most likely ones only), seed.
function Gpt:generate(prompt, count, options)
  local tokens = flow.is_tensor(prompt) and prompt:table() or flow.table.copy(prompt)
  local given = check_generate(tokens, count, options)
  local context, first = self._options.context, #tokens
  local acting = {}
  self:apply(function(module)
    acting[#acting + 1] = { module, module.training }
    module.training = false
  end)
  local ok, problem = pcall(flow.no_grad, function()
    for i = 1, count do
      local from = math.max(1, #tokens - context + 1)
      local window = flow.tensor({ flow.table.slice(tokens, from, #tokens) }, self.tokens.weight.device)
      local logits = self(window)[1]
      logits = logits[{ { #logits, #logits } }]
      if given.top and given.top < logits:size(2) then
        local best = logits:topk(given.top)
        logits = logits:masked_fill(logits:lt(best[{ {}, { given.top, given.top } }]), -math.huge)
      end
      local seed = given.seed and given.seed * 1000003 + i or nil
      tokens[#tokens + 1] = logits:sample(given.temperature or 1, seed)[1]
    end
  end)
  for _, each in ipairs(acting) do each[1].training = each[2] end
  if not ok then error(problem, 0) end
  return flow.table.slice(tokens, first + 1, #tokens)
end

models.gpt = Gpt

return models
