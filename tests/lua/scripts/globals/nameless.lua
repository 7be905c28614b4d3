-- mode: load
_G[1] = 2  -- expect error: a global has a name, not an integer
