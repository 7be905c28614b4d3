local function why(f, ...)
  local ok, message = pcall(f, ...)
  print(ok and "no error" or (tostring(message):gsub("^%w+%.lua:%d+: ", "")))
end

local function shown(x) return x.dtype .. " " .. flow.json.encode(x.shape) .. " " .. flow.json.encode(x:table()) end
print(shown(flow.tensor { { 1, 2 }, { 3, 4 } }))  -- expect: i64 [2,2] [[1,2],[3,4]]
print(shown(flow.tensor { 1, 2.5 }), shown(flow.tensor { true, false }))  -- expect: f32 [2] [1.0,2.5]	bool [2] [true,false]
print(shown(flow.zeros(2)), shown(flow.ones({ 1, 2 }, "u8")), shown(flow.full({ 2 }, 7)))  -- expect: f32 [2] [0.0,0.0]	u8 [1,2] [[1,1]]	f32 [2] [7.0,7.0]
print(shown(flow.arange(3)), shown(flow.arange(5, 1, -2)), shown(flow.arange(0, 1, 0.5)))  -- expect: i64 [3] [1,2,3]	i64 [3] [5,3,1]	f32 [3] [0.0,0.5,1.0]
print(shown(flow.arange(1 << 53, (1 << 53) + 1)), #flow.arange(0))  -- expect: i64 [2] [9007199254740992,9007199254740993]	0
print(shown(flow.arange(math.maxinteger - 1, math.maxinteger)))  -- expect: i64 [2] [9223372036854775806,9223372036854775807]
print(shown(flow.cat({ flow.ones(1, 2), flow.zeros(1, 2) })))  -- expect: f32 [2,2] [[1.0,1.0],[0.0,0.0]]
print(shown(flow.cat({ flow.ones(1, 1), flow.zeros(1, 2) }, -1)), shown(flow.cat({ flow.ones(1, 1), flow.zeros(1, 1) }, -2)), shown(flow.stack({ flow.ones(2), flow.zeros(2) }, -1)), shown(flow.stack({ flow.ones(2), flow.zeros(2) }, -2)))  -- expect: f32 [1,3] [[1.0,0.0,0.0]]	f32 [2,1] [[1.0],[0.0]]	f32 [2,2] [[1.0,0.0],[1.0,0.0]]	f32 [2,2] [[1.0,1.0],[0.0,0.0]]
why(flow.cat, { flow.ones(2, 2) }, -3)  -- expect: flow.cat takes a list of tensors and a dimension of 1..2
for _, at in ipairs { 0, 3, -1, math.mininteger } do why(flow.zeros(2).select, flow.zeros(2), 1, at) end
-- expect: x:select: 0 is outside 1..2, dimension 1 of tensor f32 [2]
-- expect: x:select: 3 is outside 1..2, dimension 1 of tensor f32 [2]
-- expect: x:select: -1 is outside 1..2, dimension 1 of tensor f32 [2]
-- expect: x:select: -9223372036854775808 is outside 1..2, dimension 1 of tensor f32 [2]
print(shown(flow.cat({ flow.ones(1, 1), flow.zeros(1, 2) }, 2)), flow.stack({ flow.ones(2), flow.ones(2) }):dims())  -- expect: f32 [1,3] [[1.0,0.0,0.0]]	2
print(flow.is_tensor(flow.ones(1)), flow.is_tensor({}))  -- expect: true	false
local x = flow.arange(6):reshape(2, 3)
print(x[2][3], shown(x[{ 2 }]) == shown(x[{ 2, 2 }]), shown(x[{ { 1, 2 }, { 2, 3 } }]))
-- expect: 6	true	i64 [2,2] [[2,3],[5,6]]
print(shown(x[flow.tensor { 2, 1, 2 }]))  -- expect: i64 [3,3] [[4,5,6],[1,2,3],[4,5,6]]
print(#x, x:size(2), x:count(), x:dims(), shown(x:t()))  -- expect: 2	3	6	2	i64 [3,2] [[1,4],[2,5],[3,6]]
print(shown(x + 1), shown(-x[1]), shown(x[1] * flow.tensor { 2, 2, 2 }))  -- expect: i64 [2,3] [[2,3,4],[5,6,7]]	i64 [3] [-1,-2,-3]	i64 [3] [2,4,6]
print(shown(x:lt(3)), shown(x:eq(x):sum(1)))  -- expect: bool [2,3] [[true,true,false],[false,false,false]]	i64 [3] [2,2,2]
print(x:sum(), shown(x:sum(1)), shown(x:to("f32"):mean(2)))  -- expect: 21	i64 [3] [5,7,9]	f32 [2] [2.0,5.0]
print(x:max(), shown(x:min(2)), shown(x:argmax(2)), x:argmin())  -- expect: 6	i64 [2] [1,4]	i64 [2] [3,3]	1
print(shown(flow.tensor({ { 1, 2 } }, "f32"):matmul(flow.tensor({ { 3 }, { 4 } }, "f32"))))  -- expect: f32 [1,1] [[11.0]]
local y = x:clone()
y[1] = 0
y:add_(1):mul_(2)
print(shown(y), shown(x))  -- expect: i64 [2,3] [[2,2,2],[10,12,14]]	i64 [2,3] [[1,2,3],[4,5,6]]
local seen = {}
for rows in flow.data.batches(5, 2, 7) do
  for _, row in ipairs(rows:table()) do seen[#seen + 1] = row end
end
print(#seen, flow.json.encode(flow.table.sorted(seen)))  -- expect: 5	[1,2,3,4,5]
local r = flow.rand({ 100 }, { seed = 1 })
print(r:min() >= 0, r:max() < 1, r == flow.rand({ 100 }, { seed = 1 }))  -- expect: true	true	true

why(flow.tensor, { { 1, 2 }, { 3 } })  -- expect: flow.tensor takes nested lists of one length each: the list[2] has 1 items, the first list there has 2
why(flow.tensor, { 1, "x" })  -- expect: flow.tensor takes nested lists of one length each: the list[2] is a string, not a number or a boolean
why(flow.tensor, { 1, true })  -- expect: flow.tensor takes numbers or booleans, not both: give a type, flow.tensor(t, "f32")
why(flow.tensor, { { 0.5 }, { 16777217 } })  -- expect: flow.tensor: the list has fractions, so the tensor is f32, which cannot hold the integer 16777217 exactly: name a type, flow.tensor(t, "f64"), or "f32" to round it
print(flow.tensor({ 0.5, 16777217 }, "f32")[2], flow.tensor({ 0.5, 16777217 }, "f64")[2], flow.tensor({ 0.5, 16777218, 1 << 40 })[2], flow.tensor({ 16777217.0 })[1])  -- expect: 16777216.0	16777217.0	16777218.0	16777216.0
why(flow.full, { 2 }, -16777217)  -- expect: flow.full: the default type f32 cannot hold the integer -16777217 exactly: name a type, flow.full(shape, -16777217, "i64"), or "f32" to round it
print(flow.full({ 1 }, 16777217, "i64")[1], flow.full({ 1 }, 16777217, "f32")[1], flow.full({ 1 }, 1 << 40)[1], flow.full({ 1 }, 16777217.0)[1])  -- expect: 16777217	16777216.0	1099511627776.0	16777216.0
why(flow.tensor, { 1 }, "float32")  -- expect: `float32` is not a type of tensors: expected f32, f16, bf16, f64, i64, i32, u8 or bool
why(flow.zeros, -1)  -- expect: flow.zeros takes sizes, integers of 0 or more, not -1
why(flow.zeros, 1 << 40, 1 << 40)  -- expect: a tensor f32 [1099511627776, 1099511627776] is too large: a tensor has at most 1099511627776 bytes
why(flow.zeros, 2, { type = "f32" })  -- expect: flow.zeros has no option `type`: there are `dtype`, `device` and `requires_grad`
why(flow.rand, 2, "i64")  -- expect: flow.rand makes floats, not i64
why(flow.arange, 1, 2, 0)  -- expect: flow.arange takes finite numbers and a step that is not 0
why(flow.arange, math.mininteger, math.maxinteger)  -- expect: flow.arange: the result is too long
why(flow.cat, {})  -- expect: flow.cat takes a list of tensors, not an empty one
why(flow.cat, { flow.ones(1, 2), flow.ones(1, 3) })  -- expect: cannot join tensor f32 [1, 2] and tensor f32 [1, 3] along dimension 1
why(function() return x[3] end)  -- expect: index 3 is outside 1..2, dimension 1 of tensor i64 [2, 3]
why(function() return x:summ() end)  -- expect: a tensor has no `summ` (did you mean `sum`?)
why(function() return x < x end)  -- expect: Lua's <, <=, > and >= give one boolean, so they do not compare tensors: write x:lt(y), x:le(y), x:gt(y) or x:ge(y) for one boolean per element
why(function() return x + flow.ones(2) end)  -- expect: cannot add tensor i64 [2, 3] and tensor f32 [2]: shapes fit where their sizes, from the last dimension on, are equal or 1
why(x.reshape, x, 4)  -- expect: cannot reshape tensor i64 [2, 3] (6 elements) to [4]
why(x.sum, x, 3)  -- expect: x:sum takes a dimension of 1..2 of tensor i64 [2, 3], not 3
-- Negative steps count as `for i = a, b, -1` does.
print(shown(x[{ 2, 1, -1 }]), shown(x[{ {}, { nil, nil, -2 } }]))  -- expect: i64 [2,3] [[4,5,6],[1,2,3]]	i64 [2,2] [[3,1],[6,4]]
print(#x[{ 1, 2, -1 }])  -- expect: 0
why(function() return x[{ 1, 3, -1 }] end)  -- expect: the range {1, 3} is outside 1..2, dimension 1 of tensor i64 [2, 3]
why(function() return x[{ 1, 2, 0 }] end)  -- expect: the step of a range is not 0
-- Autograd: fields, sums, and errors.
local w = flow.tensor({ 1, 2, 3 }, { dtype = "f32", requires_grad = true })
local total = (w * w):sum()
print(w.requires_grad, w.is_leaf, total.is_leaf, flow.is_tensor(total), w.grad)  -- expect: true	true	false	true	nil
total:backward()
print(flow.json.encode(w.grad:table()), w:detach():sum(), flow.no_grad(function() return w:sum() end))  -- expect: [2.0,4.0,6.0]	6.0	6.0
why(total.backward, total)  -- expect: backward has already passed `sum`, and its saved values are released. Add the losses and call backward once, or compute them again
why(function() w:add_(1) end)  -- expect: `add_` would change tensor f32 [3], whose gradient is wanted, behind autograd's back: write y = x + … for a new tensor, or call it inside flow.no_grad(function() … end)
why(function() w[1] = 5 end)  -- expect: `assignment` would change tensor f32 [3], whose gradient is wanted, behind autograd's back: write y = x + … for a new tensor, or call it inside flow.no_grad(function() … end)
why(x.requires_grad_, x)  -- expect: only floats have gradients, not tensor i64 [2, 3]
why(flow.ones(2).backward, flow.ones(2))  -- expect: tensor f32 [2] has no gradients to compute: none of its inputs wants one, by x:requires_grad_(), or it was computed in flow.no_grad
local _, no_gpu = pcall(flow.ones, 1, { device = "cuda:63" })
print(no_gpu:find("cuda:63 can't be used: ", 1, true) ~= nil)  -- expect: true
why(flow.ones, 1, { device = "gpu" })  -- expect: a device is "cpu", "cuda" or "cuda:N" with N from 0, not "gpu"
print((tostring(total):gsub("\n", " ")))  -- expect: tensor f32 [] computed by sum 14
print(shown(flow.where(x:gt(3), x, 0)), shown(flow.eye(2)), shown(flow.linspace(0, 1, 3)))  -- expect: i64 [2,3] [[0,0,0],[4,5,6]]	f32 [2,2] [[1.0,0.0],[0.0,1.0]]	f32 [3] [0.0,0.5,1.0]
print(shown(x:permute(2, 1)), shown(x:flatten()), shown(x:unsqueeze(1):squeeze(1)[1]), shown(x[{ {}, { 1, 1 } }]:expand(-1, 2)))  -- expect: i64 [3,2] [[1,4],[2,5],[3,6]]	i64 [6] [1,2,3,4,5,6]	i64 [3] [1,2,3]	i64 [2,2] [[1,1],[4,4]]
-- In place with views of the same memory, with recorded tensors, and into broadcast ones.
local e = flow.tensor { { 1.0, 2.0 }, { 3.0, 4.0 } }
print(shown(e:clone():add_(e)), shown((function() local c = e:clone() return c:add_(c:t()) end)()))  -- expect: f32 [2,2] [[2.0,4.0],[6.0,8.0]]	f32 [2,2] [[2.0,5.0],[5.0,8.0]]
print(shown((function() local c = e:clone() return c:mul_(c[1]) end)()))  -- expect: f32 [2,2] [[1.0,4.0],[3.0,8.0]]
why(function() flow.zeros(3):add_(w * w) end)  -- expect: tensor f32 [3] would be written into a tensor, and its gradient could not be passed back: write y = x + … for a new tensor, join with flow.cat or flow.stack, or write x:detach()
why(function() flow.zeros(1):expand(3):add_(1) end)  -- expect: `add_` would write tensor f32 [3] several times into one element: it was broadcast by expand. Write x:clone() first
local best, at = x:topk(2)
print(shown(best), shown(at), shown(x:cumsum(2)), shown(x:any(1)), x:all())  -- expect: i64 [2,2] [[3,2],[6,5]]	i64 [2,2] [[3,2],[3,2]]	i64 [2,3] [[1,3,6],[4,9,15]]	bool [3] [true,true,true]	true
print(shown(x:histogram(2, 1, 6)), shown(x:gather(2, flow.tensor { { 3 }, { 1 } })))  -- expect: i64 [2] [3,3]	i64 [2,1] [[3],[4]]
local dice = flow.randint(1, 6, { 1000 }, { seed = 4 })
print(dice:min(), dice:max(), dice == flow.randint(1, 6, { 1000 }, { seed = 4 }))  -- expect: 1	6	true
why(x.item, x)  -- expect: x:item() is of one element, not of tensor i64 [2, 3]
why(flow.data.batches, 5, 0)  -- expect: flow.data.batches takes a number of rows and a batch size of 1 or more, not 5 and 0
