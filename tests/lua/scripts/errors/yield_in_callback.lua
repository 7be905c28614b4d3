local less = function(a, b)
  coroutine.yield(1)  -- expect error: attempt to yield across a C-call boundary
end
coroutine.wrap(function() table.sort({ 2, 1 }, less) end)()
