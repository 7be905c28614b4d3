-- mode: load
string.format = string.format
string.format = function() end  -- expect error: `string.format` belongs to the library
