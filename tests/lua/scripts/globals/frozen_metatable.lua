getmetatable("").__call = function() end  -- expect error: `__call` of the strings' metatable can't be set
