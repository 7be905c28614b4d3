setmetatable(string, {})  -- expect error: setmetatable of a library or of the globals
