-- Counts words: a shell task splits a text, a map counts each part, one task adds the counts up.
--   flow run examples/word_count.lua --param corpus=some.txt
local flow = require "flow"

local split = flow.shell("split", { outputs = { parts = "part.*" }, command = [[split -n l/4 {corpus} part.]] })

local count = flow.task("count", function(ctx, part)
  local counts = {}
  for line in io.lines(part) do
    for word in line:lower():gmatch("%a+") do counts[word] = (counts[word] or 0) + 1 end
  end
  return counts
end)

local merge = flow.task("merge", function(ctx, lists)
  local total, words = {}, {}
  for _, counts in ipairs(lists) do
    for word, n in pairs(counts) do
      if not total[word] then words[#words + 1] = word end
      total[word] = (total[word] or 0) + n
    end
  end
  table.sort(words, function(a, b) return total[a] > total[b] end)
  local top = {}
  for i = 1, math.min(10, #words) do top[i] = { word = words[i], count = total[words[i]] } end
  return { distinct = #words, top = top }
end)

return flow.pipeline("word_count", {
  corpus = flow.param.path { default = "data/shakespeare.txt", help = "a text file" },
}, function(p)
  return merge(flow.map(count, split { corpus = p.corpus }.parts))
end)
