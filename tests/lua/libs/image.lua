local function file(name, bytes) flow.fs.write(ctx.dir .. "/" .. name, bytes) return ctx.dir .. "/" .. name end
local function why(f, ...)
  local ok, message = pcall(f, ...)
  message = flow.text.replace(tostring(message), ctx.dir .. "/", "")
  print(ok and "no error" or (message:gsub("^%w+%.lua:%d+: ", "")))
end

local gray = flow.tensor({ { 0, 128 }, { 255, 1 } }, "u8")
flow.image.ppm(ctx.dir .. "/a.ppm", gray)
print(flow.fs.read(ctx.dir .. "/a.ppm") == "P5\n2 2\n255\n\0\x80\xff\1")  -- expect: true
flow.image.ppm(ctx.dir .. "/b.ppm", flow.tensor { { { 0.0, 0.5, 1.0 }, { -1.0, 2.0, 0 / 0 } } })
print(flow.fs.read(ctx.dir .. "/b.ppm") == "P6\n2 1\n255\n\0\x80\xff\0\xff\0")  -- expect: true
flow.image.png(ctx.dir .. "/a.png", gray)
local png = flow.fs.read(ctx.dir .. "/a.png")
print(png:sub(1, 8) == "\x89PNG\r\n\x1a\n", string.unpack(">I4c4I4I4", png, 9))  -- expect: true	13	IHDR	2	2	25
print(png:sub(25, 29) == "\8\0\0\0\0", png:sub(-12) == "\0\0\0\0IEND\xae\x42\x60\x82")  -- expect: true	true
why(flow.image.png, ctx.dir .. "/a.png", flow.zeros(2, 2, 4))  -- expect: flow.image.png draws a tensor [height, width] (gray) or [height, width, 3] (color) of u8 or of floats from 0 to 1, with sides of 1..65535, not tensor f32 [2, 2, 4]
why(flow.image.png, ctx.dir .. "/a.png", flow.zeros(2, 2, "i64"))  -- expect: flow.image.png draws a tensor [height, width] (gray) or [height, width, 3] (color) of u8 or of floats from 0 to 1, with sides of 1..65535, not tensor i64 [2, 2]
why(flow.image.png, ctx.dir .. "/a.png", { 1 })  -- expect: the image is a tensor, not a table
