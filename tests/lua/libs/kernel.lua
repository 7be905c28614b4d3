local function why(f, ...)
  local ok, message = pcall(f, ...)
  print(ok and "no error" or (tostring(message):gsub("^%w+%.lua:%d+: ", "")))
end
local function text(x) return x.dtype .. " " .. flow.json.encode(x:table()) end
local code = [[ __global__ void f(float a, const float* x, float* y, long long n) {} ]]
local signature = "a: f32, x: in f32, y: out f32 like x, n: count of y"

-- On the CPU the fallback runs, with the arguments of the call.
local f = flow.kernel("f", code, signature, { fallback = function(a, x) return x * a end })
local x = flow.tensor({ 1, 2, 3 }, "f32")
print(tostring(f), text(f(2, x)), text(f(0.5, x[{1, 3, 2}])))  -- expect: kernel f	f32 [2.0,4.0,6.0]	f32 [0.5,1.5]
local add = flow.kernel("add", "", "x: inout f64, y: inout f64, by: i32", {
  fallback = function(x, y, by) x:add_(by) y:sub_(by) end })
local a, b = flow.zeros({ 2 }, "f64"), flow.ones({ 2 }, "f64")
local changed, other = add(a, b, 3)
print(text(a), text(b), changed == a, other == b)  -- expect: f64 [3.0,3.0]	f64 [-2.0,-2.0]	true	true
local ends = flow.kernel("ends", "", "x: in i64, low: out i64, high: out bool", {
  shape = { low = function(x) return 1 end, high = function(x) return { #x, 2 } end },
  fallback = function(x) return x[{1, 1}], flow.zeros({ #x, 2 }, "bool") end })
local low, high = ends(flow.tensor({ 7, 8 }, "i64"))
print(text(low), text(high))  -- expect: i64 [7]	bool [[false,false],[false,false]]
local ramp = flow.kernel("ramp", "", "n: i64, y: out f32", { shape = function(n) return n end, fallback = flow.zeros })
print(text(ramp(3)), text(ramp(2.0)))  -- expect: f32 [0.0,0.0,0.0]	f32 [0.0,0.0]

-- Gradients are the kernel's own, on the CPU as on a GPU.
local g = flow.kernel("g", code, signature, { fallback = function(a, x) return x * a end,
  gradient = function(gradient, a, x) return gradient * (a * 10) end })
x:requires_grad_()
g(2, x):sum():backward()
print(text(x.grad), f(2, x:detach()).requires_grad, flow.no_grad(f, 2, x).requires_grad)  -- expect: f32 [20.0,20.0,20.0]	false	false
why(f, 2, x)  -- expect: the kernel `f` has no `gradient`, and that of an argument is wanted: give it one, gradient = function(gradient, …) … end, or call it in flow.no_grad, or with x:detach()
why(flow.no_grad, add, flow.zeros(2, "f64"):requires_grad_(), b, 1)  -- expect: no error
x = x:detach()

-- A placeholder for a tensor in flow.fuse has no elements for it.
local ok, message = pcall(flow.fuse, function(x) return f(2, x) end, x)
print(ok, message:find("flow.fuse", 1, true) ~= nil)  -- expect: false	true

-- Without a fallback it needs a GPU.
local bare = flow.kernel("f", code, signature)
why(bare, 2, x)  -- expect: the kernel `f` needs a GPU, and here its tensors are on the CPU: write `gpus = 1` in the task's options and move its tensors there, x:to("cuda"); or give the kernel a `fallback`, a function that does the same on the CPU

-- Invalid arguments are rejected as on a GPU.
why(f, 2)  -- expect: the kernel `f` takes 2 arguments, f(a, x), not 1
why(f, 2, x:to("f64"))  -- expect: `x` of the kernel `f` is f32, not tensor f64 [3]: give it x:to("f32")
why(f, "2", x)  -- expect: `a` of the kernel `f` is a number, not a string
why(f, 2, 3)  -- expect: `x` of the kernel `f` is a tensor, not a number
why(add, a, b, 2.5)  -- expect: `by` of the kernel `add` is i32, not 2.5
why(add, a, b, 2^31)  -- expect: `by` of the kernel `add` is i32, not 2147483648
why(add, a, flow.zeros(1, "f64"):expand(2), 1)  -- expect: `add` would write tensor f64 [2] several times into one element: it was broadcast by expand. Write x:clone() first
local function with(options, s) return flow.kernel("f", code, s or signature, options) end
why(with { fallback = function() end }, 1, x)  -- expect: `y`, from the fallback of `f`, is a tensor, not nil
why(with { fallback = function() return flow.zeros(2) end }, 1, x)  -- expect: the fallback of the kernel `f` gave tensor f32 [2] for `y`, which is f32 [3]
why(with { fallback = function() return flow.zeros(3, "f64") end }, 1, x)  -- expect: the fallback of the kernel `f` gave tensor f64 [3] for `y`, which is f32 [3]
why(with { fallback = function() return x, x end }, 1, x)  -- expect: the fallback of the kernel `f` returned 2 values, and it has 1 `out`
local same = with { fallback = function(a, x) return x end }(1, x)
same:fill_(9)
print(text(x))  -- expect: f32 [1.0,2.0,3.0]
why(with({ shape = function() end, fallback = flow.zeros }, "n: i64, y: out f32"), 1)  -- expect: the shape of `y` of the kernel `f` is nil: its function returns sizes, or a list of them

-- Compiling needs NVRTC and no GPU.
local ok, message = pcall(f.compile, f, "sm_90")
print(ok or message:find("NVRTC, which compiles it, was not found", 1, true) ~= nil)  -- expect: true
why(f.compile, f, "hopper")  -- expect: an architecture is named as "sm_90"
why(f.compile, "f")  -- expect: k:compile() is called on a kernel, with a colon

-- Errors of a definition are reported at its place.
local kernel = flow.kernel
why(kernel, "2f", code, signature)  -- expect: flow.kernel: `2f` is not a valid name of a `__global__` function: up to 100 letters, digits and _, no digit first
why(kernel, "f", nil, signature)  -- expect: the source of the kernel `f` is a string, not nil
why(kernel, "f", code)  -- expect: the signature of the kernel `f` is a string, not nil
why(kernel, "f", code, "x: in f33")  -- expect: flow.kernel of `f`: its signature: `x: in f33` has the type `f33`: there are f32, f64, f16, bf16, i64, i32, u8 and bool
why(kernel, "f", code, signature, { fallbak = print })  -- expect: flow.kernel has no option `fallbak`; did you mean `fallback`?
why(kernel, "f", code, signature, { fallback = 3 })  -- expect: flow.kernel of `f`: `fallback` is a function, not an integer
why(kernel, "f", code, signature, { block = 2048 })  -- expect: flow.kernel of `f`: a block of 2048 x 1 x 1 threads: a GPU takes 1 to 1024, 1024 and 64, and 1024 of them together
why(kernel, "f", code, signature, { block = "x" })  -- expect: `block` of the kernel `f` is a whole number, not a string
why(kernel, "f", code, signature, { block = { 16, 16 } })  -- expect: flow.kernel of `f`: a `block` of several dimensions, or of a function, needs a `grid`
why(kernel, "f", code, signature, { block = { 16, 16 }, grid = { 1, 2, 3 }, shared = 1024 })  -- expect: no error
why(kernel, "f", code, signature, { grid = { 1, 2, 3, 4 } })  -- expect: `grid` of the kernel `f` is 1 to 3 numbers, not 4
why(kernel, "f", code, signature, { grid = 1, per_thread = 2 })  -- expect: flow.kernel of `f`: `per_thread` and `grid` exclude each other: leave one out
why(kernel, "f", code, signature, { per_thread = 0 })  -- expect: flow.kernel of `f`: `per_thread` is a number, 1 to 1048576
why(kernel, "f", code, signature, { per_thread = function() return 0 end })  -- expect: flow.kernel of `f`: `per_thread` is a number, 1 to 1048576
why(kernel, "f", code, signature, { shared = { 1, 2 } })  -- expect: `shared` of the kernel `f` is one number, not 2
why(kernel, "f", code, signature, { options = { "-I/tmp" } })  -- expect: flow.kernel of `f`: `-I/tmp` is not an option of kernels: there are -DNAME=VALUE, --use_fast_math, --fmad=…, --ftz=…, --prec-div=…, --prec-sqrt=…, --maxrregcount=N, --std=c++14, c++17 or c++20, --restrict, --extra-device-vectorization, --device-int128, -lineinfo and -G; the architecture is the GPU's
why(kernel, "f", code, "x: inout f32", { gradient = print })  -- expect: flow.kernel of `f`: a kernel with a `gradient` has one `out` and no `inout`
why(kernel, "f", code, "n: i64, y: out f32")  -- expect: flow.kernel of `f`: the shape of `y` is not known: write `y: out … like x`, or the option shape = function(n) return … end
why(kernel, "f", code, signature, { shape = print })  -- expect: flow.kernel of `f`: `shape` is a function of the arguments, for the one `out` without `like`; for several a table, shape = { y = function(…) … end }
why(kernel, "f", code, "y: out f32, z: out f32", { shape = { y = print } })  -- expect: flow.kernel of `f`: `shape.z` is a function of the arguments
why(kernel, "f", code, "y: out f32, z: out f32", { shape = { y = print, z = print, w = print } })  -- expect: `shape` of the kernel `f` has no option `w`; its options are `y`, `z`
