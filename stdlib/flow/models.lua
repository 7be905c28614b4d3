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

-- Rows first + 1 to first + t. With a cache they are a view of the table, because for one token a copy of its position
-- to a GPU takes longer than a layer.
local function positions_of(positions, first, t, device, cache)
  if cache and rawequal(positions.forward, nn.embedding.forward) then return positions.weight:narrow(1, first + 1, t) end
  return positions(flow.arange(first + 1, first + t, device))
end

-- The residual stream [batch, t, width] after the blocks.
local function residual_stream(model, index, cache)
  local options = model._options
  if cache ~= nil and (type(cache) ~= "table" or not cache.length_of) then
    error("model(tokens, cache) takes a cache, flow.nn.kv_cache(positions), not a " .. type(cache), 3)
  end
  local t, first = index:size(2), cache and cache.length or 0
  if first + t > options.context then
    error("this model accepts " .. options.context .. " tokens at most, not " .. first + t, 3)
  end
  local x = model.tokens(index)
  if model.positions then x = x + positions_of(model.positions, first, t, index.device, cache) end
  x = model.dropout(x)
  for i, block in ipairs(model.blocks) do
    if cache and block.attention and cache:length_of(block.attention) ~= first then
      error("this cache holds " .. cache:length_of(block.attention) .. " positions for block " .. i .. " and " .. first
        .. " for the model: clear it after a call that failed, or the model uses one block twice", 3)
    end
    x = options.checkpoint and model.training and not cache and flow.checkpoint(block, x) or block(x, cache)
  end
  return x
end

local function logits_of(model, x)
  x = model.norm(x, true)
  if model.head then return model.head(x) end
  return x:linear(model.tokens.weight)
end

-- Logits [batch, t, vocabulary] of tokens [batch, t], 1..vocabulary. With a cache (flow.nn.kv_cache), these are the next
-- tokens of its sequences.
function Gpt:forward(index, cache) return logits_of(self, residual_stream(self, index, cache)) end

-- The mean cross entropy of `targets` [batch, t], in nats per token.
function Gpt:loss(index, targets)
  local logits = self(index)
  return nn.cross_entropy(logits:reshape(-1, logits:size(3)), targets:reshape(-1))
end

local generate_options = { temperature = true, top = true, seed = true, cache = true, dtype = true }
local generate_types = { f32 = true, bf16 = true, f16 = true }

-- Tokens [batch, t] of a prompt, and whether it is one of several.
local function tokens_of(prompt, device)
  local tokens = prompt
  if not flow.is_tensor(prompt) then
    if type(prompt) ~= "table" or #prompt == 0 or type(prompt[1]) == "table" and #prompt[1] == 0 then
      error("model:generate takes a prompt of at least one token", 3)
    end
    for _, each in ipairs(prompt) do
      if type(each) == "table" and type(prompt[1]) == "table" and #each ~= #prompt[1] then
        error("model:generate takes several prompts only if they have as many tokens each, not " .. #prompt[1] .. " and "
          .. #each, 3)
      end
    end
    tokens = flow.tensor(prompt)
  end
  if tokens.dtype ~= "i64" and tokens.dtype ~= "i32" and tokens.dtype ~= "u8" then
    error("model:generate takes tokens, which are integers, not numbers of " .. tokens.dtype, 3)
  end
  if tokens:dims() < 1 or tokens:dims() > 2 then
    error("model:generate takes a prompt of one dimension, or prompts of two, not of " .. tokens:dims(), 3)
  end
  if tokens:size(-1) == 0 then error("model:generate takes a prompt of at least one token", 3) end
  local is_batch = tokens:dims() == 2
  return tokens:reshape(-1, tokens:size(-1)):to("i64", device), is_batch
end

local function check_generate(count, options)
  if math.type(count) ~= "integer" or count < 0 then
    error("model:generate takes a number of tokens, a whole number, not " .. tostring(count), 3)
  end
  if options ~= nil and type(options) ~= "table" then
    error("model:generate takes its options as a table, { temperature = … }, not a " .. type(options), 3)
  end
  for name in pairs(options or {}) do
    if not generate_options[name] then
      error("model:generate has no option `" .. tostring(name) .. "`: there are cache, dtype, seed, temperature and top", 3)
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
  if given.cache ~= nil and type(given.cache) ~= "boolean" then
    error("model:generate: the option `cache` is true or false, not " .. tostring(given.cache), 3)
  end
  if given.dtype ~= nil and not generate_types[given.dtype] then
    error("model:generate: the option `dtype` is \"f32\", \"bf16\" or \"f16\", not " .. tostring(given.dtype), 3)
  end
  return given
end

-- Whether a module is one of this library that computes each position alone; a missing one does.
local function is_per_position(module)
  if not module then return true end
  if module._is_adapter then return is_per_position(module.inner) end
  for _, name in ipairs { "linear", "layer_norm", "rms_norm", "embedding", "dropout" } do
    if rawequal(module.forward, nn[name].forward) then return true end
  end
  return false
end

local function all_per_position(holder, ...)
  for _, name in ipairs { ... } do
    if not is_per_position(holder[name]) then return false end
  end
  return true
end

-- Whether all parts of the model know caches: a module of the user's own may depend on any position, and a cache has one
-- place for each attention.
local function knows_caches(model)
  local inner = rawget(model, "_model") or model  -- of flow.nn.data_parallel
  if not rawequal(inner.forward, Gpt.forward) then return false end
  if not all_per_position(inner, "tokens", "positions", "dropout", "norm", "head") then return false end
  local seen = {}
  for _, block in ipairs(model.blocks) do
    local attention = block.attention
    if not rawequal(block.forward, nn.transformer_block.forward) or seen[attention] then return false end
    if not rawequal(attention.forward, nn.attention.forward) or not attention._causal then return false end
    if not all_per_position(block, "norm1", "norm2", "up", "down", "dropout") then return false end
    if not all_per_position(attention, "qkv", "out", "dropout") then return false end
    seen[attention] = true
  end
  return true
end

local function last_of(x) return x:narrow(2, x:size(2), 1) end

-- Logits [batch, vocabulary] after the last of `tokens`. While they fit into the context, only those that the cache
-- does not have are computed. Later the window slides: each token has another position than before, or other
-- predecessors, so all of them are computed again.
local function next_logits(model, tokens, cache)
  local context, count = model._options.context, tokens:size(2)
  if count > context then tokens = tokens:narrow(2, count - context + 1, context) end
  local logits
  if not cache then
    logits = last_of(model(tokens))
  elseif count > context then
    logits = logits_of(model, last_of(residual_stream(model, tokens)))
  else
    logits = logits_of(model, last_of(residual_stream(model, tokens:narrow(2, cache.length + 1, count - cache.length), cache)))
  end
  return logits:squeeze(2)
end

local function sample_of(logits, given, i)
  if given.top and given.top < logits:size(2) then
    local best = logits:topk(given.top)
    logits = logits:masked_fill(logits:lt(best[{ {}, { given.top, given.top } }]), -math.huge)
  end
  return logits:sample(given.temperature or 1, given.seed and given.seed * 1000003 + i or nil)
end

-- Generates `count` tokens after `prompt` (a list, or a tensor of one dimension): a list. For several prompts of the
-- same length, lists in a list or a tensor of two dimensions, a list of lists. Options: temperature (1), top (samples
-- from the most likely ones only), seed, cache (false: computes all tokens again for each one), dtype (of products, as
-- flow.autocast).
function Gpt:generate(prompt, count, options)
  local given = check_generate(count, options)
  local device = self.tokens.weight.device
  local start, is_batch = tokens_of(prompt, device)
  local batch, first = start:size(1), start:size(2)
  local acting = {}
  self:apply(function(module)
    acting[#acting + 1] = { module, module.training }
    module.training = false
  end)
  local function run()
    local tokens = flow.zeros({ batch, first + count }, { dtype = "i64", device = device })
    tokens:narrow(2, 1, first):copy_(start)
    local cache
    if given.cache ~= false and knows_caches(self) then
      cache = nn.kv_cache(math.max(1, math.min(self._options.context, first + count - 1)))
    end
    for i = 1, count do
      local logits = next_logits(self, tokens:narrow(2, 1, first + i - 1), cache)
      tokens:narrow(2, first + i, 1):copy_(sample_of(logits, given, i):unsqueeze(2))
    end
    return tokens:narrow(2, first + 1, count):table()
  end
  local ok, result = pcall(flow.no_grad, function()
    if given.dtype then return flow.autocast(given.dtype, run) end
    return run()
  end)
  for _, each in ipairs(acting) do each[1].training = each[2] end
  if not ok then error(result, 0) end
  return is_batch and result or result[1]
end

models.gpt = Gpt

return models
