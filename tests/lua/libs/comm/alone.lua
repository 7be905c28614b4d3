-- A task with one rank: every collective returns its argument.
print(ctx.comm.rank, ctx.comm.ranks, ctx.comm)  -- expect: 0	1	ctx.comm of rank 0 of 1
local x = flow.tensor({ 1, 2, 3 }, "f32")
print(ctx.comm:all_reduce(x, "mean") == x, x == flow.tensor({ 1, 2, 3 }, "f32"))  -- expect: true	true
print(ctx.comm:reduce_scatter(x) == x, ctx.comm:all_gather(x) == x)  -- expect: true	true
print(ctx.comm:all_to_all(x) == x, ctx.comm:broadcast(x) == x)  -- expect: true	true
print(ctx.comm:all_reduce(3), ctx.comm:all_reduce(2.5, "max"), ctx.comm:all_reduce(3, "mean"))  -- expect: 3	2.5	3.0
print(ctx.comm:all_gather("a")[1], ctx.comm:broadcast { 1, { b = "c" } }[2].b)  -- expect: a	c
print(ctx.comm:all_reduce(x, { async = true }):wait() == x, ctx.comm:barrier())  -- expect: true
print(pcall(ctx.comm.barrier))  -- expect: false	alone.lua:10: `ctx.comm.barrier` is a method: write `ctx.comm:barrier(…)`
print(pcall(function() ctx.comm:send(x, 0) end))  -- expect: false	alone.lua:11: ctx.comm:send: rank 0 is this one; copy instead
print(pcall(function() ctx.comm:recv(x, 1) end))  -- expect: false	alone.lua:12: ctx.comm:recv takes a rank, 0 to 0, not 1
print(pcall(function() return ctx.comm.al_reduce end))  -- expect: false	alone.lua:13: ctx.comm has no `al_reduce` (did you mean `all_reduce`?); it has rank, ranks, all_reduce, reduce_scatter, all_gather, broadcast, all_to_all, barrier, send, recv
print(pcall(function() ctx.comm:all_reduce(x, "product") end))  -- expect: false	alone.lua:14: ctx.comm:all_reduce combines by "sum", "mean", "max" or "min", not "product"
print(pcall(function() ctx.comm:all_reduce(flow.tensor({ 1, 2 }, "i64"), "mean") end))  -- expect: false	alone.lua:15: ctx.comm:all_reduce: the mean of i64 is not supported for integers: take the sum, or convert to f32 first
print(pcall(function() ctx.comm:all_reduce(x, "sum", { asnyc = true }) end))  -- expect: false	alone.lua:16: ctx.comm:all_reduce has no option `asnyc`: the only option is async
print(pcall(function() ctx.comm:all_reduce(x, "sum", { async = 1 }) end))  -- expect: false	alone.lua:17: ctx.comm:all_reduce: async is true or false, not number
print(pcall(function() ctx.comm:barrier({ async = true }) end))  -- expect: false	alone.lua:18: ctx.comm:barrier takes no arguments

local function overlap(...) print((select(2, pcall(ctx.comm.all_reduce, ctx.comm, { ... })))) end
overlap(x, x)  -- expect: alone.lua:20: ctx.comm:all_reduce: tensor 2 of the list shares elements with tensor 1; they would be combined twice
local large = flow.zeros(300, 300)
overlap(large, x, large:reshape(-1))  -- expect: alone.lua:20: ctx.comm:all_reduce: tensor 3 of the list shares elements with tensor 1; they would be combined twice
overlap(large[{ 1, 200 }], large[{ 200, 300 }])  -- expect: alone.lua:20: ctx.comm:all_reduce: tensor 2 of the list shares elements with tensor 1; they would be combined twice
overlap(large:t()[3], large[5]:flip(1))  -- expect: alone.lua:20: ctx.comm:all_reduce: tensor 2 of the list shares elements with tensor 1; they would be combined twice
print(#ctx.comm:all_reduce { large:t()[3], large:t()[4], large[{ 1, 2, 1 }]:narrow(2, 5, 9) }, #ctx.comm:broadcast { x, x })  -- expect: 3	2
print(pcall(function() ctx.comm:broadcast(x, 0.5) end))  -- expect: false	alone.lua:27: ctx.comm:broadcast takes a rank, 0 to 0, not 0.5
