print(os.getenv("HOME"), os.getenv("MISSING"))  -- expect: /home/somebody	nil
print(type(os.time()), type(os.clock()), math.type(os.time()))  -- expect: number	number	integer
local name = os.tmpname()
local file = io.open(name, "w")
file:write("one\ntwo\n")
file:close()
for line in io.lines(name) do print(line) end
-- expect: one
-- expect: two
io.output(name)
io.write("three\n")
io.close()
print(io.open(name):read("a"))
-- expect: three
-- expect: 
os.remove(name)
io.write("a", 1, "\nb\n")
-- expect: a1
-- expect: b
io.stdout:write("x "):write("y\n")  -- expect: x y
print(io.open("/does/not/exist"))  -- expect: nil	/does/not/exist: No such file or directory	2
print(collectgarbage("count") > 0, collectgarbage())  -- expect: true	0
print(pcall(collectgarbage, "stop") == false)  -- expect: true
io.write("no newline")  -- expect: no newline
