ctx.comm:all_reduce({}, "mean")  -- expect error: gangs come with a cluster build
