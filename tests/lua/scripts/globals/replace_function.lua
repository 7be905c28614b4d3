-- mode: load
print = nil  -- expect error: `print` belongs to the library and can't be replaced
