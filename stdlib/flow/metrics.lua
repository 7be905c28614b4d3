-- How good predictions are.
local metrics = {}

local function labels_of(values) return type(values) == "table" and values or values:table() end

-- The share of equal labels; both are lists or tensors of integers of the same length.
function metrics.accuracy(predicted, expected)
  local p, e = labels_of(predicted), labels_of(expected)
  if #p ~= #e or #p == 0 then error("flow.metrics.accuracy takes two lists of the same length, at least 1", 2) end
  local right = 0
  for i = 1, #p do
    if p[i] == e[i] then right = right + 1 end
  end
  return right / #p
end

-- counts[expected][predicted], for labels 1..classes.
function metrics.confusion(predicted, expected, classes)
  local p, e = labels_of(predicted), labels_of(expected)
  local counts = {}
  for i = 1, classes do
    counts[i] = {}
    for j = 1, classes do counts[i][j] = 0 end
  end
  for i = 1, #p do counts[e[i]][p[i]] = counts[e[i]][p[i]] + 1 end
  return counts
end

return metrics
