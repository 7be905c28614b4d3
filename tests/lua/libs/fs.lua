local function file(name, bytes) flow.fs.write(ctx.dir .. "/" .. name, bytes) return ctx.dir .. "/" .. name end
local function why(f, ...)
  local ok, message = pcall(f, ...)
  message = flow.text.replace(tostring(message), ctx.dir .. "/", "")
  print(ok and "no error" or (message:gsub("^%w+%.lua:%d+: ", "")))
end

local fs = flow.fs
local dir = ctx.dir .. "/tree"
fs.remove(dir)
fs.mkdir(dir .. "/a/b")
fs.write(dir .. "/a/x.txt", "one\0")
fs.append(dir .. "/a/x.txt", "two")
print(#fs.read(dir .. "/a/x.txt"), fs.size(dir .. "/a/x.txt"), fs.exists(dir), fs.is_dir(dir .. "/a/x.txt"))  -- expect: 7	7	true	false
fs.copy(dir .. "/a", dir .. "/c")
fs.rename(dir .. "/c/x.txt", dir .. "/c/y.txt")
print(flow.json.encode(fs.list(dir)), flow.json.encode(fs.list(dir .. "/c")))  -- expect: ["a","c"]	["b","y.txt"]
print(fs.remove(dir .. "/c"), fs.remove(dir .. "/c"), fs.exists(dir .. "/c"))  -- expect: true	false	false
print(fs.join("a", "b", "c.txt"), fs.join("a", "/b"), fs.basename("a/b/"), fs.basename("/"))  -- expect: a/b/c.txt	/b	b	/
print(fs.dirname("a/b/c"), fs.dirname("c"), fs.dirname("/c"), fs.extension("a/b.csv.gz"), fs.extension("b") == "")  -- expect: a/b	.	/	.gz	true
why(fs.read, dir)  -- expect: flow.fs.read: cannot read `tree`: it is a folder
why(fs.size, dir .. "/none")  -- expect: flow.fs.size: tree/none: No such file or directory
why(fs.list, dir .. "/none")  -- expect: flow.fs.list: tree/none: No such file or directory
why(fs.write, dir .. "/none/x", "x")  -- expect: flow.fs.write: cannot write tree/none/x: No such file or directory
why(fs.write, dir .. "/x", 1)  -- expect: flow.fs.write takes a string, not a number
why(fs.mkdir, dir .. "/a/x.txt/y")  -- expect: flow.fs.mkdir: tree/a/x.txt/y: Not a directory
why(fs.copy, dir, dir .. "/a/in")  -- expect: flow.fs.copy: tree to tree/a/in: a folder cannot be copied into itself
why(fs.join)  -- expect: no error
why(fs.read, "")  -- expect: flow.fs.read: the path is empty or has a zero byte in it
