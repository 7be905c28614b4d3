local function why(f, ...)
  local ok, message = pcall(f, ...)
  print(ok and "no error" or (tostring(message):gsub("^%w+%.lua:%d+: ", "")))
end

local metrics = flow.metrics
print(metrics.accuracy({ 1, 2, 3, 1 }, flow.tensor { 1, 2, 1, 2 }))  -- expect: 0.5
local counts = metrics.confusion({ 1, 2, 2 }, { 1, 1, 2 }, 3)
print(flow.json.encode(counts))  -- expect: [[1,1,0],[0,1,0],[0,0,0]]
local picture = metrics.confusion_image(counts)
print(picture.dtype, #picture.shape, picture.shape[3])  -- expect: u8	3	3
why(metrics.accuracy, { 1 }, { 1, 2 })  -- expect: flow.metrics.accuracy takes equally many predicted and expected labels, at least one: not 1 and 2
why(metrics.accuracy, {}, {})  -- expect: flow.metrics.accuracy takes equally many predicted and expected labels, at least one: not 0 and 0
why(metrics.accuracy, 1, {})  -- expect: flow.metrics.accuracy takes two tensors or lists of labels, not a number
why(metrics.accuracy, flow.zeros(2, 3), flow.tensor { 1, 2 })  -- expect: flow.metrics.accuracy takes one label per item; for scores [n, classes] pass x:argmax(2)
why(metrics.confusion, { 4 }, { 1 }, 3)  -- expect: flow.metrics.confusion: item 1 is label 4, outside 1..3
why(metrics.confusion, { 4 }, { 1 })  -- expect: flow.metrics.confusion takes predicted and expected labels and the number of classes, 1 or more
