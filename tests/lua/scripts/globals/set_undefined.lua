-- mode: load
count = 0  -- expect error: setting the undefined global `count`
