-- Shell tasks: commands with named inputs and outputs, each in a folder of its own.
--   flow run examples/shell.lua --out result
local flow = require "flow"

local numbers = flow.shell("numbers", { args = { "count" }, outputs = { list = "numbers.txt" },
  command = "seq 1 {count} > {outputs.list}" })

local squares = flow.shell("squares", { args = { "list" }, outputs = { table = "squares.csv" },
  command = [[awk '{print $1 "," $1 * $1}' {list} > {outputs.table}]] })

local lines = flow.shell("lines", { args = { "file" }, command = "wc -l < {file}" })

return flow.pipeline("shell", { count = flow.param.int { default = 5, min = 1 } }, function(p)
  local made = squares(numbers(p.count).list)
  return { squares = made.table, lines = lines(made.table).stdout }
end)
