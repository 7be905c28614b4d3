local function f() return debug.getinfo(1, "Sl").currentline, debug.getinfo(1).func end
print(f())  -- expect: 1	nil
print(type(debug.traceback("x")), pcall(function() return debug.sethook end))  -- expect: string	true	nil
