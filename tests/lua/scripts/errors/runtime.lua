local t = nil
print(t.x)  -- expect error: attempt to index a nil value (local 't')
