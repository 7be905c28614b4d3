local name = os.tmpname()
io.open(name, "w"):write("kept")
ctx:file(name:match("[^/]+$"))
print(io.open(name):read("a"))  -- expect: kept
os.remove(name)
