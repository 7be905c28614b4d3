-- mode: load
_G.rate = 3
print(rate, _G.rate, rawget(_G, "rate"))  -- expect: 3	3	3
rate = 4
print(rate)  -- expect: 4
rawset(_G, "other", 5)
print(other, _G.missing, rawget(_G, "missing"))  -- expect: 5	nil	nil
rate = nil
print(rate)  -- expect: nil
print(_G._G == _G, _G.print == print, _ENV._G == _G)  -- expect: true	true	true
