-- ranks: 3
local comm, rank = ctx.comm, ctx.rank
local function show(...)
  local out = {}
  for i, x in ipairs { ... } do
    out[i] = x.dtype .. "[" .. table.concat(x.shape, ",") .. "] " .. flow.json.encode(x:table()):gsub("%.0", "")
  end
  print(table.concat(out, "; "))
end
local x = flow.tensor({ 1, 2, 3 }, "f32") * (rank + 1)

show(comm:all_reduce(x:clone()), comm:all_reduce(x:clone(), "mean"))  -- expect: f32[3] [6,12,18]; f32[3] [2,4,6]
show(comm:all_reduce(x:clone(), "max"), comm:all_reduce(x:clone(), "min"))  -- expect: f32[3] [3,6,9]; f32[3] [1,2,3]
show(comm:reduce_scatter(x))
-- expect rank 0: f32[1] [6]
-- expect rank 1: f32[1] [12]
-- expect rank 2: f32[1] [18]
show(comm:all_gather(x:reshape(1, 3)))  -- expect: f32[3,3] [[1,2,3],[2,4,6],[3,6,9]]
show(comm:all_gather(flow.full({}, rank)))  -- expect: f32[3] [0,1,2]
show(comm:all_to_all(x))
-- expect rank 0: f32[3] [1,2,3]
-- expect rank 1: f32[3] [2,4,6]
-- expect rank 2: f32[3] [3,6,9]
show(comm:broadcast(x:clone(), 2), comm:broadcast(x:clone()))  -- expect: f32[3] [3,6,9]; f32[3] [1,2,3]

-- Views, other types, tables of tensors.
local wide = flow.zeros(3, 2)
wide[{ { 1, 3 }, { 2, 2 } }]:copy_(x:reshape(3, 1))
comm:all_reduce(wide[{ { 1, 3 }, { 2, 2 } }])
show(wide)  -- expect: f32[3,2] [[0,6],[0,12],[0,18]]
local many = { a = flow.full({ 2 }, rank, "i64"), b = flow.full({ 1, 2 }, 0.5, "bf16"), c = flow.full({ 2 }, rank, "i64"),
  large = flow.full({ 100000 }, rank, "f64") }
print(comm:all_reduce(many) == many, many.large:sum())  -- expect: true	300000.0
show(many.a, many.b, many.c)  -- expect: i64[2] [3,3]; bf16[1,2] [[1.5,1.5]]; i64[2] [3,3]
show(comm:all_reduce(flow.tensor { rank == 1, false }, "max"))  -- expect: bool[2] [true,false]
print(#comm:all_reduce {})  -- expect: 0

-- Plain values.
print(comm:all_reduce(rank), comm:all_reduce(rank + 0.5), comm:all_reduce(rank, "mean"))  -- expect: 3	4.5	1.0
print(comm:all_reduce(rank == 1 and 2.5 or 1), comm:all_reduce(-rank, "min"))  -- expect: 4.5	-2
print(table.concat(comm:all_gather("r" .. rank), " "))  -- expect: r0 r1 r2
print(#comm:all_gather(("x"):rep(1000 * rank))[3])  -- expect: 2000
local given = comm:broadcast(rank == 1 and { n = 1, x = flow.arange(1000), text = ("y"):rep(3) } or nil, 1)
print(given.n, given.x:sum(), given.text)  -- expect: 1	500500	yyy
print(comm:broadcast(rank == 2 and "last" or nil, 2))  -- expect: last

-- Between two.
local after, before = (rank + 1) % 3, (rank + 2) % 3
local sent = comm:send(x, after, { async = true })
local got = comm:recv({ shape = { 3 } }, before)
sent:wait()
show(got)
-- expect rank 0: f32[3] [3,6,9]
-- expect rank 1: f32[3] [1,2,3]
-- expect rank 2: f32[3] [2,4,6]
if rank == 0 then comm:send({ "hello", rank }, 2) end
if rank == 2 then print(comm:recv(nil, 0)[1]) end  -- expect rank 2: hello
comm:barrier()

-- Several calls in progress at once.
local handles, sums = {}, {}
for i = 1, 5 do handles[i] = comm:all_reduce(flow.full({ i * 1000 }, rank), "sum", { async = true }) end
for i = 1, 5 do sums[i] = ("%d"):format(handles[i]:wait():sum()) end
print(table.concat(sums, " "))  -- expect: 3000 6000 9000 12000 15000
print(comm:all_gather(x, { async = true }):wait():size(1))  -- expect: 9
local given_by_last = x:clone()
local broadcast = comm:broadcast(given_by_last, 2, { async = true })
local scattered = comm:reduce_scatter(x, { async = true })
local maximum = comm:reduce_scatter(x, "max", { async = true })
local exchanged = comm:all_to_all(x, { async = true })
local received = comm:recv({ shape = { 3 } }, before, { async = true })
local going = comm:send(x, after, { async = true })
show(received:wait(), exchanged:wait())
-- expect rank 0: f32[3] [3,6,9]; f32[3] [1,2,3]
-- expect rank 1: f32[3] [1,2,3]; f32[3] [2,4,6]
-- expect rank 2: f32[3] [2,4,6]; f32[3] [3,6,9]
going:wait()
show(maximum:wait(), scattered:wait(), broadcast:wait())
-- expect rank 0: f32[1] [3]; f32[1] [6]; f32[3] [3,6,9]
-- expect rank 1: f32[1] [6]; f32[1] [12]; f32[3] [3,6,9]
-- expect rank 2: f32[1] [9]; f32[1] [18]; f32[3] [3,6,9]
show(given_by_last, x)  -- what is broadcast comes in place; what the others read is as it was
-- expect rank 0: f32[3] [3,6,9]; f32[3] [1,2,3]
-- expect rank 1: f32[3] [3,6,9]; f32[3] [2,4,6]
-- expect rank 2: f32[3] [3,6,9]; f32[3] [3,6,9]
comm:all_reduce(x, { async = true })  -- the attempt's end waits for it
