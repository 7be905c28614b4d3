local function file(name, bytes) flow.fs.write(ctx.dir .. "/" .. name, bytes) return ctx.dir .. "/" .. name end
local function why(f, ...)
  local ok, message = pcall(f, ...)
  message = flow.text.replace(tostring(message), ctx.dir .. "/", "")
  print(ok and "no error" or (message:gsub("^%w+%.lua:%d+: ", "")))
end

local whole = "\x1f\x8b\x08\0\0\0\0\0\x02\x03\x4b\xd4\x49\xe2\x32\xd4\x31\xe2\x02\0\x7b\x07\x97\x0a\x08\0\0\0"
print(#flow.text.lines(file("twice.gz", whole .. whole)))  -- expect: 4
local seen = {}
for size = 2, #whole - 1 do
  local ok, message = pcall(flow.text.lines, file("cut.gz", whole:sub(1, size)))
  seen[ok and "read" or message:match("cut.gz: (.*)")] = true
end
for message in pairs(seen) do print(message) end  -- expect: its gzip data is broken: it is truncated
why(flow.text.lines, file("sum.gz", whole:sub(1, -9) .. "\0\0\0\0\x08\0\0\0"))  -- expect: flow.text.lines: sum.gz: its gzip data is broken: incorrect data check
why(flow.text.lines, file("tail.gz", whole .. "tail"))  -- expect: flow.text.lines: tail.gz: its gzip data is broken: incorrect header check
why(flow.data.csv, file("method.gz", "\x1f\x8b\x07\0\0\0\0\0\x02\x03"))  -- expect: flow.data.csv: method.gz: its gzip data is broken: unknown compression method
print(#flow.fs.read(file("raw.gz", whole)) == #whole)  -- expect: true
