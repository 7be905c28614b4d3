local function why(f, ...)
  local ok, message = pcall(f, ...)
  print(ok and "no error" or (tostring(message):gsub("^%w+_?%w*%.lua:%d+: ", "")))
end

local function shown(x) return x.dtype .. " " .. flow.json.encode(x.shape) .. " " .. flow.json.encode(x:table()) end
local function near(x, y)
  local expected = flow.tensor(y, "f64")
  return ((x:to("f64") - expected):abs() / (expected:abs() + 1)):max() < 1e-6
end

local x = flow.tensor({ { 1, -2, 3 }, { 0.5, 4, -0.25 } }, "f32")
print(shown(x:abs()), shown(x:relu()))  -- expect: f32 [2,3] [[1.0,2.0,3.0],[0.5,4.0,0.25]]	f32 [2,3] [[1.0,0.0,3.0],[0.5,4.0,0.0]]
local e = { math.exp(1), math.exp(-2), math.exp(3) }
local total = e[1] + e[2] + e[3]
print(near(x:exp()[1], e), near(x:abs():log()[1], { 0, math.log(2), math.log(3) }), near(x:abs():sqrt()[1], { 1, 2 ^ 0.5, 3 ^ 0.5 }))  -- expect: true	true	true
local function tanh(v) return (math.exp(2 * v) - 1) / (math.exp(2 * v) + 1) end
local function sigmoid(v) return 1 / (1 + math.exp(-v)) end
print(near(x:tanh()[1], { tanh(1), tanh(-2), tanh(3) }), near(x:sigmoid()[1], { sigmoid(1), sigmoid(-2), sigmoid(3) }))  -- expect: true	true
print(near(x:softmax()[1], { e[1] / total, e[2] / total, e[3] / total }), near(x:softmax():sum(2), { 1, 1 }))  -- expect: true	true
print(near(x:log_softmax()[1], { 1 - math.log(total), -2 - math.log(total), 3 - math.log(total) }))  -- expect: true
print(shown(flow.tensor({ { 1000, 1000 } }, "f32"):softmax()), shown(flow.tensor({ { 1000, 0 } }, "f32"):log_softmax()))  -- expect: f32 [1,2] [[0.5,0.5]]	f32 [1,2] [[0.0,-1000.0]]
local loss = x:cross_entropy(flow.tensor { 3, 2 })
local second = math.exp(0.5) + math.exp(4) + math.exp(-0.25)
print(near(flow.tensor { loss:item() }, { (math.log(total) - 3 + math.log(second) - 4) / 2 }), loss:dims())  -- expect: true	0
print(shown(x:maximum(0)), shown(x:minimum(flow.tensor { 0, 0, 1 })))  -- expect: f32 [2,3] [[1.0,0.0,3.0],[0.5,4.0,0.0]]	f32 [2,3] [[0.0,-2.0,1.0],[0.0,0.0,-0.25]]
print(shown(x:gt(0)), shown(x:ge(3)))  -- expect: bool [2,3] [[true,false,true],[true,true,false]]	bool [2,3] [[false,false,true],[false,true,false]]
print(shown(x:le(-0.25)), shown(x:ne(3)))  -- expect: bool [2,3] [[false,true,false],[false,false,true]]	bool [2,3] [[true,true,false],[true,true,true]]
print(shown(x:t():contiguous()), shown(x:reshape(-1)), shown(x:reshape(3, -1)[3]))  -- expect: f32 [3,2] [[1.0,0.5],[-2.0,4.0],[3.0,-0.25]]	f32 [6] [1.0,-2.0,3.0,0.5,4.0,-0.25]	f32 [2] [4.0,-0.25]
print(shown(x[1] / 2), shown(x[1] ^ 2), shown(2 - x[1]), shown(flow.tensor { 7, 8 } / 2))  -- expect: f32 [3] [0.5,-1.0,1.5]	f32 [3] [1.0,4.0,9.0]	f32 [3] [1.0,4.0,-1.0]	f32 [2] [3.5,4.0]
print(flow.full({ 1 }, 3):item(), flow.tensor { 5 }:item(), flow.json.encode(flow.tensor { { true } }:table()))  -- expect: 3.0	5	[[true]]
print(shown(x:to("i64")), shown(flow.tensor({ 0, 2 }):to("bool")))  -- expect: i64 [2,3] [[1,-2,3],[0,4,0]]	bool [2] [false,true]
print(shown(x:mean(1)), shown(x:max(1)), shown(x:argmin(1)), x:argmax())  -- expect: f32 [3] [0.75,1.0,1.375]	f32 [3] [1.0,4.0,3.0]	i64 [3] [2,1,2]	5
print(shown(x[1]:clone():fill_(1)), shown(x[1]:clone():add_(x[1])), shown(x[1]:clone():mul_(flow.tensor { 1, 0, 1 })))  -- expect: f32 [3] [1.0,1.0,1.0]	f32 [3] [2.0,-4.0,6.0]	f32 [3] [1.0,-0.0,3.0]
print(shown(flow.arange(2):add_(2.0)), shown(flow.arange(2):mul_(3)), shown(flow.arange(2):fill_(4.0)))  -- expect: i64 [2] [3,4]	i64 [2] [3,6]	i64 [2] [4,4]
print(x == x:clone(), x == x:t(), flow.randn(2, 3):count(), flow.rand({ 2 }, { dtype = "f64" }).dtype)  -- expect: true	false	6	f64
local rows = {}
for i, row in ipairs(x) do rows[i] = row:sum() end
print(flow.json.encode(rows), #x[{ 2, 1 }])  -- expect: [2.0,4.25]	0

why(x.cross_entropy, x, flow.tensor { 1 })  -- expect: cross_entropy takes logits [n, classes] and 2 labels, one integer per row, not tensor f32 [2, 3] and tensor i64 [1]
why(x.matmul, x, x)  -- expect: cannot multiply the matrices tensor f32 [2, 3] and tensor f32 [2, 3]: [m, k] times [k, n] is [m, n]
why(x.matmul, x, 3)  -- expect: y in x:matmul(y) is a tensor, not a number
why(x.t, flow.ones(2, 2, 2))  -- expect: x:t() is of a matrix, not of tensor f32 [2, 2, 2]: name two dimensions, x:t(1, 2)
why(x.reshape, x, -1, -1)  -- expect: x:reshape takes sizes, one of which may be -1, not -1
why(x.reshape, x, -1, 4)  -- expect: cannot reshape tensor f32 [2, 3] (6 elements) to [-1, 4]
why(x.to, x, "int")  -- expect: `int` is not a type of tensors: expected f32, f16, bf16, f64, i64, i32, u8 or bool
why(x.maximum, x, flow.ones(2))  -- expect: cannot take the maximum of tensor f32 [2, 3] and tensor f32 [2]: shapes fit where their sizes, from the last dimension on, are equal or 1
why(x.eq, x, "a")  -- expect: cannot compare tensor f32 [2, 3] and a string
why(x.size, x, 0)  -- expect: x:size takes a dimension of 1..2 of tensor f32 [2, 3], not 0
why(x.mean, x, 3)  -- expect: x:mean takes a dimension of 1..2 of tensor f32 [2, 3], not 3
why(x.argmax, x, "a")  -- expect: x:argmax takes a dimension of 1..2 of tensor f32 [2, 3], not a string
why(x.max, flow.zeros(0))  -- expect: max of tensor f32 [0]: it is empty
why(x.mean, flow.zeros(0))  -- expect: tensor f32 [0] has no mean: it is empty
why(x.add_, x, flow.ones(3, 3))  -- expect: cannot add tensor f32 [2, 3] and tensor f32 [3, 3]: shapes fit where their sizes, from the last dimension on, are equal or 1
why(x.add_, flow.arange(2), 0.5)  -- expect: x:add_ of tensor i64 [2] takes integers: write x:to("f32") before it
why(x.mul_, flow.arange(2), flow.ones(2))  -- expect: tensor i64 [2] takes integers in place, not tensor f32 [2]: write x:to("f32") before it
why(x.fill_, flow.arange(2), 1.5)  -- expect: x:fill_ of tensor i64 [2] takes integers: write x:to("f32") before it
why(x.mul_, x, "a")  -- expect: cannot multiply tensor f32 [2, 3] and a string
why(x.fill_, x, "a")  -- expect: x:fill_(v) takes a number or a boolean, not a string
why(x.table, 3)  -- expect: x in x:table() is a tensor, not a number
why(x.clone)  -- expect: x in x:clone() is a tensor, not nil
why(flow.stack, { flow.ones(1), flow.ones(2) })  -- expect: cannot stack tensor f32 [1] and tensor f32 [2]: stacked tensors have one shape
why(flow.stack, {})  -- expect: flow.stack takes a list of tensors, not an empty one
why(flow.cat, { flow.ones(1), 2 })  -- expect: item 2 of flow.cat is a tensor, not a number
why(flow.full, 2, "a")  -- expect: flow.full takes a shape and a value: flow.full({2, 3}, 0.5), not a number
why(flow.ones, "a")  -- expect: flow.ones takes a shape: flow.ones(2, 3) or flow.ones({2, 3}), not a string
why(flow.arange)  -- expect: flow.arange takes numbers: flow.arange(n), flow.arange(a, b, step)
why(flow.rand, 2, { sed = 1 })  -- expect: flow.rand has no option `sed`: there are `dtype`, `device`, `seed` and `requires_grad`
why(function() return x[0] end)  -- expect: index 0 is outside 1..2, dimension 1 of tensor f32 [2, 3]
why(function() return x[{ 1, 3 }] end)  -- expect: the range {1, 3} is outside 1..2, dimension 1 of tensor f32 [2, 3]
why(function() return x[{ { 1, 2 }, { 1, 9 } }] end)  -- expect: the range {1, 9} is outside 1..3, dimension 2 of tensor f32 [2, 3]
why(function() return x[flow.tensor { 3 }] end)  -- expect: row 3 (element 1) is outside 1..2
why(function() x[1] = flow.ones(2) end)  -- expect: cannot assign tensor f32 [2] to a part of shape [3]
why(function() return x + "a" end)  -- expect: cannot add tensor f32 [2, 3] and a string
print(shown(x % 2), shown(flow.tensor { -7, 7 } // 2))  -- expect: f32 [2,3] [[1.0,-0.0,1.0],[0.5,0.0,1.75]]	i64 [2] [-4,3]
why(function() return x & 2 end)  -- expect: tensors have +, -, *, /, //, %, ^ and unary -; for others use methods and x:table()
why(function() return x .. "a" end)  -- expect: a tensor cannot be joined with `..`: write tostring(x), or flow.cat { x, y } to join tensors
why(function() return x ^ flow.ones(2) end)  -- expect: cannot raise tensor f32 [2, 3] and tensor f32 [2]: shapes fit where their sizes, from the last dimension on, are equal or 1
why(pairs, x)  -- expect: a tensor is not a table: write `for i = 1, #x do local row = x[i] … end`, or x:table()

-- Unary functions without an operator, computed by hand.
local u = flow.tensor({ -1.5, 0, 2 }, "f32")
print(shown(u:neg()), shown(u:sign()), shown(u:ceil()), shown(u:floor()), shown(u:square()))
-- expect: f32 [3] [1.5,-0.0,-2.0]	f32 [3] [-1.0,0.0,1.0]	f32 [3] [-1.0,0.0,2.0]	f32 [3] [-2.0,0.0,2.0]	f32 [3] [2.25,0.0,4.0]
print(near(u:expm1(), { math.exp(-1.5) - 1, 0, math.exp(2) - 1 }), near(u:abs():log1p(), { math.log(2.5), 0, math.log(3) }))  -- expect: true	true
print(near(u:reciprocal()[{ 3 }], { 0.5 }), near(u:erf(), { -0.966105146475311, 0, 0.995322265018953 }))  -- expect: true	true
print(shown(u:mul(2)), shown(u:div(2)), shown(u:pow(2)), shown(u:floor_divide(1)))
-- expect: f32 [3] [-3.0,0.0,4.0]	f32 [3] [-0.75,0.0,1.0]	f32 [3] [2.25,0.0,4.0]	f32 [3] [-2.0,0.0,2.0]
local v = u:clone()
print(shown(v:sub_(1)), shown(v:div_(2)), shown(v:neg_()), shown(v:relu_()), shown(v:zero_()), shown(v:exp_()), shown(v:copy_(u)))
-- expect: f32 [3] [-2.5,-1.0,1.0]	f32 [3] [-1.25,-0.5,0.5]	f32 [3] [1.25,0.5,-0.5]	f32 [3] [1.25,0.5,0.0]	f32 [3] [0.0,0.0,0.0]	f32 [3] [1.0,1.0,1.0]	f32 [3] [-1.5,0.0,2.0]
print(u:amin(), shown(flow.ones_like(u)), shown(u:view(1, 3)), shown(u:narrow(1, 2, 2)), u:select(1, 3):item(), u:is_contiguous(), x:t():is_contiguous())
-- expect: -1.5	f32 [3] [1.0,1.0,1.0]	f32 [1,3] [[-1.5,0.0,2.0]]	f32 [2] [0.0,2.0]	2.0	true	false
print(shown(flow.tensor({ { 0, 9, 1 }, { 5, 2, 1 } }, "f32"):sample(0)), flow.zeros(4, 3):sample(1, 7) == flow.zeros(4, 3):sample(1, 7))  -- expect: i64 [2] [2,1]	true
print(flow.is_grad_enabled(), flow.no_grad(function() return flow.is_grad_enabled(), flow.enable_grad(flow.is_grad_enabled) end))  -- expect: true	false	true
-- Without volatility a path grows by the rate; path 3 is the same alone and among others.
local calm = flow.gbm { paths = 1, steps = 2, start = 100, rate = 0.1, volatility = 0, years = 2, dtype = "f64" }
print(near(calm[1], { 100, 100 * math.exp(0.1), 100 * math.exp(0.2) }))  -- expect: true
local function ends(paths, first) return flow.gbm { paths = paths, first = first, steps = 3, seed = 9, ends = true } end
print(ends(5)[{ 3, 4 }] == ends(2, 3), ends(1, 3)[1] == flow.gbm { paths = 3, steps = 3, seed = 9 }[3][4])  -- expect: true	true
why(flow.gbm, { path = 3 })  -- expect: flow.gbm has no option `path`: there are paths, steps, start, rate, volatility, years, seed, first, ends, dtype and device

-- Integers: quotients by 0 and numbers beyond the type are rejected.
local count, zero = flow.tensor { 7, -7 }, flow.tensor { 2, 0 }
why(function() return count // zero end)  -- expect: cannot divide integers by 0: tensor i64 [2] has one; write x:to("f32") for infinities
why(function() return count % 0 end)  -- expect: cannot take the remainder of integers by 0
why(function() return 7 // zero end)  -- expect: cannot divide integers by 0: tensor i64 [2] has one; write x:to("f32") for infinities
print(shown(count // flow.tensor { 2, 2 }), shown(flow.zeros({ 0 }, "i64") // flow.zeros({ 0 }, "i64")))  -- expect: i64 [2] [3,-4]	i64 [0] []
why(flow.full, { 2 }, 256, "u8")  -- expect: 256 does not fit into a tensor of u8: write x:to("i64") first
why(flow.full, { 2 }, 1e300, "i64")  -- expect: 1e+300 does not fit into a tensor of i64: write x:to("f64") first
why(function() local bytes = flow.zeros({ 2 }, "u8") bytes[1] = -1 end)  -- expect: -1 does not fit into a tensor of u8: write x:to("i64") first
why(function() flow.zeros({ 2 }, "i32"):fill_(2 ^ 31) end)  -- expect: 2147483648 does not fit into a tensor of i32: write x:to("f64") first
why(flow.tensor, { 1, 300 }, "u8")  -- expect: 300 does not fit into a tensor of u8: write x:to("i64") first
why(function() local bytes = flow.zeros({ 3 }, "u8") bytes[{ 1, 2 }] = { 1, 300 } end)  -- expect: 300 does not fit into a tensor of u8: write x:to("i64") first
why(flow.randint, 0, 300, { 2 }, "u8")  -- expect: 300 does not fit into a tensor of u8: write x:to("i64") first
print(shown(flow.full({ 2 }, 1.9, "i32")))  -- expect: i32 [2] [1,1]
why(flow.arange, 254, 258, "u8")  -- expect: 258 does not fit into a tensor of u8: write x:to("i64") first
why(flow.arange, 2147483646, 2147483649, "i32")  -- expect: 2147483649 does not fit into a tensor of i32: write x:to("i64") first
why(flow.arange, 1, -1, -0.5, "u8")  -- expect: -1 does not fit into a tensor of u8: write x:to("f64") first
why(flow.linspace, -10, 300, 3, "u8")  -- expect: -10 does not fit into a tensor of u8: write x:to("f64") first
print(shown(flow.arange(254, 255, "u8")), shown(flow.linspace(0, 255, 2, "u8")), shown(flow.linspace(1, 300, 0, "u8")))  -- expect: u8 [2] [254,255]	u8 [2] [0,255]	u8 [0] []
-- In place: exactly, in the type itself, or rejected.
print(shown(flow.tensor { 0 }:add_(flow.tensor { 16777217 }, -1)), shown(flow.tensor { 1 }:add_(flow.tensor { (1 << 60) + 1 }, 4)), shown(flow.tensor({ 5 }, "i32"):add_(flow.tensor { 16777217 }, 3.0)))  -- expect: i64 [1] [-16777217]	i64 [1] [4611686018427387909]	i32 [1] [50331656]
print(shown(flow.tensor { 1 }:add_((1 << 60) + 1, 4)), shown(flow.tensor({ 5 }, "u8"):add_(-3, -1)), shown(flow.tensor { 0.5 }:add_(3, 0.5)), shown(flow.tensor { 0.5 }:add_(flow.tensor { 3 }, 0.5)))  -- expect: i64 [1] [4611686018427387909]	u8 [1] [8]	f32 [1] [2.0]	f32 [1] [2.0]
why(flow.arange(2).add_, flow.arange(2), math.huge)  -- expect: inf does not fit into a tensor of i64: write x:to("f64") first
why(flow.arange(2).mul_, flow.arange(2), 1e300)  -- expect: 1e+300 does not fit into a tensor of i64: write x:to("f64") first
why(flow.arange(2).add_, flow.arange(2), 1, 1e300)  -- expect: 1e+300 does not fit into a tensor of i64: write x:to("f64") first
why(flow.arange(2).add_, flow.arange(2), flow.arange(2), 1e300)  -- expect: 1e+300 does not fit into a tensor of i64: write x:to("f64") first
why(flow.arange(2).add_, flow.arange(2), 1 << 62, 4)  -- expect: 4611686018427387904 times 4 does not fit into a tensor of i64: write x:to("f64") first
why(flow.arange(2).add_, flow.arange(2), flow.arange(2), 0.5)  -- expect: x:add_ of tensor i64 [2] takes integers: write x:to("f32") before it
why(function() flow.zeros({ 2 }, "i32"):add_(flow.arange(2), 1 << 40) end)  -- expect: 1099511627776 does not fit into a tensor of i32: write x:to("i64") first
-- The floor of the quotient itself, also where a / b rounds to the next integer or to -0.
print(shown(flow.tensor({ -1.4, 1.4 }, "f64") // math.huge), shown(flow.tensor({ 1.0 }, "f64") // 0.1))  -- expect: f64 [2] [-1.0,0.0]	f64 [1] [9.0]
-- Gradients at singular points: equal values have none of their deviation, a NaN has both.
local function slopes(f, ...)
  local given = { ... }
  for i, x in ipairs(given) do given[i] = x:requires_grad_() end
  f(table.unpack(given)):sum():backward()
  return given[1].grad, given[#given].grad
end
print(shown((slopes(function(a) return a:std() end, flow.full({ 3 }, 2)))))  -- expect: f32 [3] [0.0,0.0,0.0]
local of_a, of_b = slopes(flow.tensor({}).maximum, flow.tensor { 1.0, 2.0, 0 / 0 }, flow.tensor { 1.0, 3.0, 4.0 })
print(shown(of_a), shown(of_b))  -- expect: f32 [3] [0.5,0.0,1.0]	f32 [3] [0.5,1.0,1.0]
why(function() return flow.ones(3):histogram(4, -math.huge, 0) end)  -- expect: histogram takes a number of bins of 1 or more and a finite range low < high, not 4 bins of -inf to 0
why(function() return flow.zeros(1, 1, 4, 4):max_pool2d() end)  -- expect: a pool takes the size of its window: x:max_pool2d(2), x:avg_pool2d({3, 2})
why(function() return flow.zeros(1, 1, 4, 4):conv2d(flow.zeros(1, 1, 2, 2), nil, { strides = 2 }) end)  -- expect: x:conv2d has no option `strides`; did you mean `stride`?
-- Sizes beyond any image.
why(function() return flow.ones(1, 1, 4, 4):conv2d(flow.ones(1, 1, 3, 3), nil, { dilation = 1 << 62 }) end)  -- expect: conv2d's dilation takes a window, a stride and a padding of up to 2147483647, not 4611686018427387904
why(function() return flow.ones(1, 1, 4, 4):conv2d(flow.ones(1, 1, 3, 3), nil, { padding = math.maxinteger }) end)  -- expect: conv2d takes a window, a stride and a padding of up to 2147483647, not 9223372036854775807
why(function() return flow.ones(1, 1, 4, 4):avg_pool2d({ math.maxinteger, 1 }, { padding = { math.maxinteger // 2, 0 } }) end)  -- expect: avg_pool2d takes a window, a stride and a padding of up to 2147483647, not 9223372036854775807
why(function() return flow.ones(1, 1, 4, 4):conv2d(flow.ones(1, 1, 3, 3), nil, { dilation = (1 << 31) - 1 }) end)  -- expect: conv2d: the window of tensor f32 [1, 1, 3, 3] is larger than tensor f32 [1, 1, 4, 4] and its padding
print(shown(flow.ones(1, 1, 2, 2):max_pool2d(2, { stride = (1 << 31) - 1 })))  -- expect: f32 [1,1,1,1] [[[[1.0]]]]
-- A whole number is an integer next to integers, also if Lua represents it as a float.
do
  local ids, some = flow.tensor { 16777217, 4999 }, flow.tensor { true, false }
  print(shown(ids % 2 ^ 20), shown(ids + 1e0), shown(ids // 2.0), shown(ids * 2.0), shown(1e3 - ids))
  -- expect: i64 [2] [1,4999]	i64 [2] [16777218,5000]	i64 [2] [8388608,2499]	i64 [2] [33554434,9998]	i64 [2] [-16776217,-3999]
  print(shown(flow.where(some, ids, 0.0)), shown(ids:maximum(5e3)), shown(ids:clamp(0, 2 ^ 24)), shown(ids:eq(2 ^ 24)), shown(ids:lt(16777216.5)))
  -- expect: i64 [2] [16777217,0]	i64 [2] [16777217,5000]	i64 [2] [16777216,4999]	bool [2] [false,false]	bool [2] [false,true]
  print(shown(ids ^ 2), shown(2 ^ flow.tensor { 0, 10, 62 }), shown(flow.tensor { -2, 3 } ^ flow.tensor { 3, 2 }), shown(flow.tensor({ 5 }, "i32"):pow(3.0)))
  -- expect: i64 [2] [281475010265089,24990001]	i64 [3] [1,1024,4611686018427387904]	i64 [2] [-8,9]	i32 [1] [125]
  print(shown(ids * 0.5), shown(ids / 2), shown(flow.tensor { 2, 4 } ^ -1), shown(flow.tensor { 4, 9 } ^ 0.5), (ids * 1e30).dtype)
  -- expect: f32 [2] [8388608.0,2499.5]	f32 [2] [8388608.0,2499.5]	f32 [2] [0.5,0.25]	f32 [2] [2.0,3.0]	f32
  why(function() return 2 ^ flow.tensor { 1, -1 } end)  -- expect: cannot raise integers to a negative power, which is a fraction: tensor i64 [2] has one; write x:to("f32") first
  print(shown(flow.tensor({ 200 }, "u8"):eq(300)), shown(flow.tensor({ 200 }, "u8"):lt(300.5)))  -- expect: bool [1] [false]	bool [1] [true]
end

-- A half is compared with a number in its own type, and so is clamp's gradient.
for _, type in ipairs { "bf16", "f16" } do
  local x = flow.full({ 3 }, 0.1, type)
  local edge = flow.full({ 2 }, 0.7, type):requires_grad_()
  edge:clamp(0.7, 1):sum():backward()
  print(shown(x:eq(0.1)), shown(x:ge(0.1)), shown(x:gt(0.1)), shown(x:clamp(0.1, 1):eq(0.1)), edge.grad:sum())
end
-- expect: bool [3] [true,true,true]	bool [3] [true,true,true]	bool [3] [false,false,false]	bool [3] [true,true,true]	2.0
-- expect: bool [3] [true,true,true]	bool [3] [true,true,true]	bool [3] [false,false,false]	bool [3] [true,true,true]	2.0

-- Sums into one place are computed in f32, in gradients too.
for _, type in ipairs { "bf16", "f16" } do
  local ones, first = flow.ones({ 5000 }, type), flow.ones({ 5000 }, "i64")
  local rows = flow.zeros({ 1, 1 }, type):requires_grad_()
  rows:embedding(first):sum():backward()
  print(flow.zeros({ 1 }, type):scatter_add(1, first, ones)[1], rows.grad[1][1])
end
-- expect: 4992.0	4992.0
-- expect: 5000.0	5000.0

-- An interpolation reaches its ends, in one pass too.
print(flow.tensor({ 1e8 }, "f32"):lerp(flow.tensor({ 1 }, "f32"), 1)[1], flow.fuse(function(a, b) return a:lerp(b, 1) end, flow.tensor({ 1e8 }, "f32"), flow.tensor({ 1 }, "f32"))[1])  -- expect: 1.0	1.0

-- A product over nothing has gradients, which are empty or zero.
do
  local a, b = flow.zeros(2, 3, 0):requires_grad_(), flow.zeros(0, 4):requires_grad_()
  local y = a:matmul(b)
  y:sum():backward()
  print(flow.json.encode(y.shape), flow.json.encode(a.grad.shape), flow.json.encode(b.grad.shape))  -- expect: [2,3,4]	[2,3,0]	[0,4]
end

-- A tensor with overlapping elements is not written in place, and an entry without probability is never sampled.
do
  local windows = flow.data.windows(flow.arange(6):to("f32"), 3, { stride = 1 }).x
  why(windows.add_, windows, 1)  -- expect: `add_` would write tensor f32 [3, 3] several times into one element: its rows are windows that overlap. Write x:clone() first
  windows[1] = 0
  local apart = flow.data.windows(flow.arange(7):to("f32"), 3).x
  print(shown(windows), shown(apart:add_(1)))  -- expect: f32 [3,3] [[0.0,0.0,0.0],[0.0,0.0,4.0],[0.0,4.0,5.0]]	f32 [2,3] [[2.0,3.0,4.0],[5.0,6.0,7.0]]
  local nan, inf = 0 / 0, math.huge
  why(function() return flow.tensor { { 0.5, 1 }, { nan, 1 } }:sample(1, 1) end)  -- expect: sample cannot draw from row 2 of tensor f32 [2, 2]: its logits have a NaN, or all of them are -infinity
  why(function() return flow.tensor { { -inf, -inf } }:sample(0) end)  -- expect: sample cannot draw from row 1 of tensor f32 [1, 2]: its logits have a NaN, or all of them are -infinity
  print(shown(flow.tensor { { -inf, 3 } }:sample(1, 1)))  -- expect: i64 [1] [2]
end
