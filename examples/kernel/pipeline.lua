-- A CUDA kernel of one's own: a picture of the Mandelbrot set, and its area.
--
--   flow run examples/kernel --out pictures
--
-- On a GPU NVRTC compiles the C++ below, once for the state; elsewhere the fallback does the same with tensors. To
-- run it on a GPU, write gpus = 1 among the task's options.
local flow = require "flow"

-- For every c = x + iy: after how many steps z * z + c has left the circle of radius 2.
local escape = flow.kernel("escape", [[
__global__ void escape(const double* x, const double* y, int limit, int* counts, long long height, long long width) {
  long long column = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  long long row = blockIdx.y * (long long)blockDim.y + threadIdx.y;
  if (column >= width || row >= height) return;
  double a = 0, b = 0;
  int count = 0;
  while (count < limit && a * a + b * b <= 4) {
    double next = a * a - b * b + x[column];
    b = 2 * a * b + y[row];
    a = next;
    count++;
  }
  counts[row * width + column] = count;
}
]], "x: in f64, y: in f64, limit: i32, counts: out i32, height: size 1 of y, width: size 1 of x", {
  shape = function(x, y) return #y, #x end,
  block = { 32, 8 },
  grid = function(x, y) return (#x + 31) // 32, (#y + 7) // 8 end,
  options = { "--fmad=false" },  -- the same roundings as the fallback's
  fallback = function(x, y, limit)
    local nothing = flow.zeros({ #y, #x }, { dtype = "f64", device = x.device })
    local x, y = nothing + x, nothing + y:reshape(-1, 1)
    local a, b, counts = nothing, nothing, nothing:to("i32")
    for _ = 1, limit do
      counts = counts + (a * a + b * b):le(4):to("i32")
      a, b = a * a - b * b + x, 2 * a * b + y  -- far outside these become NaN, which is not within 4
    end
    return counts
  end,
})

local draw = flow.task("draw", function(ctx, width, limit)
  local height = width * 4 // 5
  local x = flow.linspace(-2, 0.5, width):to("f64"):to(ctx.device)
  local y = flow.linspace(1, -1, height):to("f64"):to(ctx.device)
  local counts = escape(x, y, limit):to("cpu")
  local inside = counts:eq(limit):to("f64"):mean()
  ctx:log("the area is about %.3f", inside * 2.5 * 2)
  flow.image.png(ctx.dir .. "/mandelbrot.png", (counts:to("f32") / limit):pow(0.5))
  return { area = inside * 2.5 * 2, picture = ctx:file("mandelbrot.png") }
end)

return flow.pipeline("kernel", {
  width = flow.param.int { default = 500, min = 2, max = 10000 },
  limit = flow.param.int { default = 100, min = 1, max = 100000 },
}, function(p)
  return draw(p.width, p.limit)
end)
