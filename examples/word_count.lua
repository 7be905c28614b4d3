-- Counts words: a shell task splits a text, a map counts each part, one task adds the counts up.
--
--   flow run examples/word_count.lua
--   flow run examples/word_count.lua --param corpus=some.txt --param parts=16
local flow = require "flow"

-- A glob among the outputs is a list of files, sorted. Parts end at line ends.
local split = flow.shell("split", {
  outputs = { parts = "part.*" },
  command = [[split -n l/{parts} {corpus} part.]],
})

-- A file arrives in a task as a path. The result is a plain table: { the = 723, to = 451, … }.
local count = flow.task("count", function(ctx, part) return flow.text.histogram(part) end)

-- A map's result is the list of its instances' results, in order.
local merge = flow.task("merge", function(ctx, counts) return flow.table.sum(counts) end)

local rank = flow.task("rank", function(ctx, counts, top)
  local words = flow.table.sorted(flow.table.keys(counts), function(a, b) return counts[a] > counts[b] end)
  local best = flow.table.map(flow.table.slice(words, 1, top), function(word)
    return { word = word, count = counts[word] }
  end)
  return { distinct = #words, top = best }
end)

return flow.pipeline("word_count", {
  corpus = flow.param.path { default = "data/shakespeare.txt", help = "a text file" },
  parts  = flow.param.int  { default = 4, min = 1, help = "into how many parts it is split" },
  top    = flow.param.int  { default = 10, min = 1, help = "how many words to show" },
}, function(p)
  local parts = split { corpus = p.corpus, parts = p.parts }.parts
  return rank(merge(flow.map(count, parts)), p.top)
end)
