string.trim = function() end  -- expect error: `string.trim` can't be set: libraries are read-only
