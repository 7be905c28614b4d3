print(ctx.run, ctx.task, ctx.attempt, ctx.rank, ctx.ranks, ctx.device, ctx.dir, ctx.seed, ctx.stopping)  -- expect: run	t	1	0	1	cpu	/tmp	7	false
print(ctx)  -- expect: ctx of t
ctx:log("%d of %s", 3, "x")  -- expect: 3 of x
ctx:log({ 1 })  -- expect: table: 0x1
ctx:log("a\nb")
-- expect: a
-- expect: b
print(pcall(function() return ctx.sed end))  -- expect: false	fields.lua:8: ctx has no `sed` (did you mean `seed`?); it has attempt, checkpoint, comm, device, dir, file, log, metric, progress, rank, ranks, restore, run, seed, step, stopping, task, wait
print(pcall(function() ctx.x = 1 end))  -- expect: false	fields.lua:9: ctx can't be written to: use a local instead of ctx.x
print(pcall(ctx.log, "x"))  -- expect: false	fields.lua:10: `ctx.log` is a method: write `ctx:log(…)`
print(ctx:restore())  -- expect: nil
