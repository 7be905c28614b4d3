-- mode: load
print(unpack, loadstring, setfenv, getfenv, jit, bit, bit32, module)  -- expect: nil	nil	nil	nil	nil	nil	nil	nil
print(_VERSION)  -- expect: Lua 5.4
