local function why(f, ...)
  local ok, message = pcall(f, ...)
  print(ok and "no error" or (tostring(message):gsub("^%w+%.lua:%d+: ", "")))
end
local x = flow.arange(10) - 1
local function rows(loader, epoch)
  local all = {}
  for batch in loader:epoch(epoch) do all[#all + 1] = flow.json.encode(batch:to("i64"):table()) end
  return table.concat(all, " ")
end

local plain = flow.data.loader(x, { batch = 4 })
print(#plain, rows(plain))  -- expect: 3	[0,1,2,3] [4,5,6,7] [8,9]
print(rows(flow.data.loader(x, { batch = 4, drop_last = true })))  -- expect: [0,1,2,3] [4,5,6,7]
print(flow.json.encode(plain:state()))  -- expect: {"batch":4,"count":10,"epoch":2,"position":0,"ranks":1}

-- The order depends on the seed and the epoch.
local a, b = flow.data.loader(x, { batch = 3, shuffle = 7 }), flow.data.loader(x, { batch = 3, shuffle = 7, prefetch = 3 })
local first = rows(a, 1)
print(first == rows(b, 1), first == rows(a, 1), first == rows(a, 2), rows(b, 2) == rows(a, 2))  -- expect: true	true	false	true

-- A table of tensors: batches have the same fields, and rows go together.
local y = x * 10
for batch in flow.data.loader({ x = x, y = y:reshape(10, 1) }, { batch = 5, shuffle = 1, prefetch = 1 }):epoch() do
  print((batch.x:reshape(5, 1) * 10) == batch.y)  -- expect: true
end
-- expect: true
for batch in flow.data.loader({ x, y }, { batch = 10 }):epoch() do print(#batch, batch[2]:sum()) end  -- expect: 2	450

-- A state from any position leads to exactly the remaining batches, with and without a thread.
local bad = 0
for stop = 0, 7 do
  for _, prefetch in ipairs { 0, 2 } do
    local one = flow.data.loader(x, { batch = 3, shuffle = 5, prefetch = prefetch })
    local whole, part, given = {}, {}, 0
    for e = 1, 2 do for batch in one:epoch(e) do whole[#whole + 1] = tostring(batch:sum()) end end
    local two = flow.data.loader(x, { batch = 3, shuffle = 5, prefetch = prefetch })
    local state = two:state()
    for e = 1, 2 do
      for batch in two:epoch(e) do
        if given == stop then break end
        given = given + 1
        part[#part + 1] = tostring(batch:sum())
        state = flow.json.decode(flow.json.encode(two:state()))
      end
      if given == stop then break end
    end
    local three = flow.data.loader(x, { batch = 3, shuffle = 99, prefetch = 2 - prefetch })
    three:load(state)
    for e = three:state().epoch, 2 do
      for batch in three:epoch(e) do part[#part + 1] = tostring(batch:sum()) end
    end
    if table.concat(whole, " ") ~= table.concat(part, " ") then bad = bad + 1 print(stop, prefetch, table.concat(whole, " "), table.concat(part, " ")) end
  end
end
print(bad)  -- expect: 0

-- Shards have equal lengths; they hold every row, or with drop_last none twice.
for _, drop in ipairs { false, true } do
  local seen, sizes = {}, {}
  for rank = 0, 2 do
    local n = 0
    for batch in flow.data.loader(x, { batch = 2, shuffle = 3, rank = rank, ranks = 3, drop_last = drop }):epoch(4) do
      for _, value in ipairs(batch:to("i64"):table()) do seen[value] = (seen[value] or 0) + 1 n = n + 1 end
    end
    sizes[#sizes + 1] = n
  end
  local distinct, most = 0, 0
  for _, times in pairs(seen) do distinct, most = distinct + 1, math.max(most, times) end
  print(table.concat(sizes, " "), distinct, most)  -- expect: 4 4 4	10	2
end
-- expect: 2 2 2	6	1

-- A state continues with another number of ranks, at any position: no row is lost, and only fill rows are repeated.
local function sharded(ranks, rank, batch, drop)
  return flow.data.loader(flow.arange(31), { batch = batch, shuffle = 4, rank = rank, ranks = ranks, drop_last = drop })
end
local wrong, states = 0, 0
for _, drop in ipairs { false, true } do
  for stop = 0, #sharded(3, 0, 2, drop) do
    local seen, state = {}, sharded(3, 0, 2, drop):state()
    local function give(ranks, batch, batches)
      local from, given = state, 0
      for rank = 0, ranks - 1 do
        local loader, left = sharded(ranks, rank, batch, drop), batches
        loader:load(flow.json.decode(flow.json.encode(from)))
        local all = loader:epoch(2)
        while left > 0 do
          local rows = all()
          if not rows then break end
          left = left - 1
          for _, row in ipairs(rows:to("i64"):table()) do seen[row], given = (seen[row] or 0) + 1, given + 1 end
        end
        local now = loader:state()
        wrong = wrong + (rank > 0 and flow.json.encode(now) ~= flow.json.encode(state) and 1 or 0)
        state = now
      end
      return given
    end
    state.epoch = 2
    local given = give(3, 2, stop)
    if state.epoch == 2 then given = given + give(2, 3, 2) end
    if state.epoch == 2 then given = given + give(5, 1, 1) end
    if state.epoch == 2 then given = given + give(1, 4, 100) end
    local distinct = 0
    for _ in pairs(seen) do distinct = distinct + 1 end
    states = states + 1
    if drop and (given ~= distinct or distinct < 28) or not drop and (distinct ~= 31 or given > 35) then wrong = wrong + 1 end
  end
end
print(wrong, states)  -- expect: 0	13
local taken = sharded(2, 1, 3)
taken:load { epoch = 1, position = 2, batch = 2, ranks = 3, count = 31, seed = 4 }
print(flow.json.encode(taken:state()), #taken)  -- expect: {"batch":3,"count":31,"epoch":1,"given":12,"position":0,"ranks":2,"seed":4}	6

-- A function returns items, which are collated; transform is applied to each batch.
local items = flow.data.loader(function(i) return { x = flow.tensor { i, i }, label = i, name = "n" .. i } end,
                               { length = 5, batch = 2, transform = function(b) b.twice = b.x * 2 return b end })
for batch in items:epoch() do print(flow.json.encode(batch.x.shape), batch.label:sum(), batch.twice:sum(), batch.name[1]) end
-- expect: [2,2]	3	12	n1
-- expect: [2,2]	7	28	n3
-- expect: [1,2]	5	20	n5

-- Windows of tokens are views.
local tokens = flow.arange(11) - 1
local w = flow.data.windows(tokens, 4, { stride = 2 })
print(flow.json.encode(w.x.shape), flow.json.encode(w.x:table()))  -- expect: [4,4]	[[0,1,2,3],[2,3,4,5],[4,5,6,7],[6,7,8,9]]
print(flow.json.encode(w.y[4]:table()), #flow.data.windows(tokens, 5).x, #flow.data.windows(tokens, 10).y)  -- expect: [7,8,9,10]	2	1
for batch in flow.data.loader(w, { batch = 4, prefetch = 1 }):epoch() do print((batch.x + 1) == batch.y) end  -- expect: true

-- A loop that is left, followed by another one.
local left = flow.data.loader(x, { batch = 2, prefetch = 4 })
for batch in left:epoch() do break end
print(left:state().position, rows(left, 1))  -- expect: 1	[0,1] [2,3] [4,5] [6,7] [8,9]
local old = left:epoch(1)
old()
left:epoch(1)
why(old)  -- expect: this loop over a loader has ended: another one has begun, or a state was loaded
print(rows(flow.data.loader(flow.zeros(0), { batch = 2 })) == "")  -- expect: true

why(flow.data.loader, x, { batch = 0 })  -- expect: the option `batch` of flow.data.loader is a whole number of 1..4611686018427387903, not 0
why(flow.data.loader, x, { batches = 2 })  -- expect: flow.data.loader has no option `batches`; did you mean `batch`?
why(flow.data.loader, { x, flow.zeros(3) })  -- expect: flow.data.loader: dataset[2] has 3 rows, and others of the dataset have 10
why(flow.data.loader, function() end)  -- expect: flow.data.loader: a function as dataset needs the option `length`: how many items there are
why(flow.data.loader, function() end, { length = 2, prefetch = 1 })  -- expect: flow.data.loader: `prefetch` is for datasets of tensors: a function is Lua, which one thread runs
why(flow.data.loader, x, { rank = 3, ranks = 3 })  -- expect: the option `rank` of flow.data.loader is a whole number of 0..2, not 3
why(plain.load, plain, flow.data.loader(x, { batch = 3 }):state())  -- expect: loader:load: the state is of a loader whose `batch` is 3, and here it is 4: the remaining batches would differ
why(flow.data.windows, tokens, 11)  -- expect: flow.data.windows: 11 tokens hold no window of 11 and the token after it
