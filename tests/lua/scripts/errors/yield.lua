coroutine.yield(1)  -- expect error: attempt to yield from outside a coroutine
