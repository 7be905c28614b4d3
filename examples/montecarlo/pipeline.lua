-- The price of a call option by simulation, with its confidence interval, against the formula of Black and Scholes.
--
--   flow run examples/montecarlo
--   flow run examples/montecarlo --param paths=100000000 --param batches=100
--
-- Paths are numbered and their random numbers depend on the number alone, so any number of batches gives the same price.
local flow = require "flow"

-- Sums of one batch of discounted payoffs, in f64.
local simulate = flow.task("simulate", function(ctx, first, count, market)
  local ends = flow.gbm { paths = count, first = first, steps = market.steps, start = market.spot, rate = market.rate,
    volatility = market.volatility, years = market.years, seed = market.seed, ends = true, device = ctx.device }
  local payoff = (ends:to("f64") - market.strike):relu() * math.exp(-market.rate * market.years)
  return { count = count, sum = payoff:sum(), squares = payoff:square():sum() }
end)

-- The price, and the interval that holds it in 95 of 100 such runs.
local combine = flow.task("combine", function(ctx, batches)
  local all = flow.table.sum(batches)
  local mean = all.sum / all.count
  local squares = all.squares - all.count * mean * mean
  if squares < 1e-12 * all.squares then squares = 0 end            -- equal prices, up to rounding
  local variance = squares / (all.count - 1)
  local half = 1.959964 * math.sqrt(variance / all.count)
  return { price = mean, low = mean - half, high = mean + half, paths = all.count }
end)

-- Black and Scholes (1973): S N(d1) - K exp(-rT) N(d2); what is certain, or costs nothing, has no d1.
local function formula(market)
  if market.volatility * math.sqrt(market.years) == 0 or market.strike == 0 then
    return math.max(market.spot - market.strike * math.exp(-market.rate * market.years), 0)
  end
  local function normal(x) return 0.5 * (1 + flow.tensor({ x / math.sqrt(2) }, "f64"):erf():item()) end
  local spread = market.volatility * math.sqrt(market.years)
  local d1 = (math.log(market.spot / market.strike) + (market.rate + market.volatility ^ 2 / 2) * market.years) / spread
  return market.spot * normal(d1) - market.strike * math.exp(-market.rate * market.years) * normal(d1 - spread)
end

local compare = flow.task("compare", function(ctx, simulated, market)
  local exact = formula(market)
  local error_of_mean = (simulated.high - simulated.low) / 2 / 1.959964
  local errors = error_of_mean > 0 and (simulated.price - exact) / error_of_mean or 0
  ctx:log("simulated %.4f (%.4f to %.4f) of %d paths, exact %.4f: %.2f standard errors apart", simulated.price,
    simulated.low, simulated.high, simulated.paths, exact, errors)
  return { simulated = simulated, exact = exact, standard_errors = errors }
end)

return flow.pipeline("montecarlo", {
  paths      = flow.param.int    { default = 2000000, min = 2 },
  batches    = flow.param.int    { default = 8, min = 1 },
  steps      = flow.param.int    { default = 4, min = 1, help = "of each path; the price does not depend on it" },
  spot       = flow.param.number { default = 100, min = 0.01 },
  strike     = flow.param.number { default = 105, min = 0 },
  rate       = flow.param.number { default = 0.03 },
  volatility = flow.param.number { default = 0.25, min = 0 },
  years      = flow.param.number { default = 1, min = 0 },
  seed       = flow.param.int    { default = 1 },
}, function(p)
  local market = { spot = p.spot, strike = p.strike, rate = p.rate, volatility = p.volatility, years = p.years,
    steps = p.steps, seed = p.seed }
  local parts = {}
  for i = 1, p.batches do
    local first = (i - 1) * p.paths // p.batches
    parts[i] = simulate(first + 1, i * p.paths // p.batches - first, market)
  end
  return compare(combine(parts), market)
end)
