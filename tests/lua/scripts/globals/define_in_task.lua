_G.rate = 3  -- expect error: the global `rate` can't be set in a task
