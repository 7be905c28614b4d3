local a, b = {}, {}
print(b, a, b)  -- expect: table: 0x1	table: 0x2	table: 0x1
print(tostring(a), string.format("%s %p", a, b))  -- expect: table: 0x2	table: 0x2 0x1
print((tostring(print):gsub("0x%x+", "N")))  -- expect: function: N
print(setmetatable({}, { __tostring = function() return "me" end }))  -- expect: me
print((tostring(setmetatable({}, { __name = "Point" }))))  -- expect: Point: 0x4
print(string.format("%5.1f|%-5s|%05d|%%|%q", 1.25, "ab", 42, "x"))  -- expect:   1.2|ab   |00042|%|"x"
print(string.format("%8p|", a))  -- expect:      0x2|
print(1, 1.0, -0.0, 1e100, "s", nil, true)  -- expect: 1	1.0	-0.0	1e+100	s	nil	true
