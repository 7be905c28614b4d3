// Scripts that launch kernels: NVRTC compiles them, and the fake driver runs the host versions.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/kernels/jit/folder.hpp"
#include "tests/lua/vm.hpp"

using namespace flow;
using namespace flow::test;

// From the fake driver: its launches, one line each, and the images that it has loaded.
extern "C" const char* fake_launched();
extern "C" void fake_forget();
extern "C" int fake_modules();
// From the fake GPU: the result of every later wait.
extern std::string fake_fault;

namespace {

constexpr const char* kKernels = R"lua(
local flow = require "flow"
local rows = { block = 32, shape = { sums = function(x) return x:size(1) end, longest = function() return { 1 } end },
  grid = function(x) return x:size(1) // 32 + 1 end, shared = function(x) return x:size(2) * 40000 end }
local saxpy = flow.kernel("saxpy", [[
__global__ void saxpy(float a, const float* x, const float* y, float* out, long long n) {
  long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += step) out[i] = a * x[i] + y[i];
}
]], "a: f32, x: in f32, y: in f32, out: out f32 like x, n: count of out", { per_thread = 4,
  gradient = function(g, a, x, y) return g * a, g end })
local twice = flow.kernel("twice", [[
extern "C" __global__ void twice(double* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= 2;
}
]], "x: inout f64, n: i32 count of x", { block = 2 })
local row_sums = flow.kernel("row_sums", [[
__global__ void row_sums(const float* x, float* sums, long long* longest, long long rows, long long columns) {
  long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (row >= rows) return;
  sums[row] = 0;
  for (long long i = 0; i < columns; i++) sums[row] += x[row * columns + i];
  if (row == 0) *longest = columns;
}
]], "x: in f32, sums: out f32, longest: out i64, rows: size 1 of x, columns: size 2 of x", rows)
rows.grid, rows.shape.sums = 77, error  -- too late: the kernel has its own
local every = flow.kernel("every_type", [[
__global__ void every_type(float a, double b, int c, long long d, unsigned char e, bool f, double* out) {
  out[0] = a; out[1] = b; out[2] = c; out[3] = d; out[4] = e; out[5] = f;
}
]], "a: f32, b: f64, c: i32, d: i64, e: u8, f: bool, out: out f64", { shape = function() return 6 end })
local function on_gpu(t, type) return flow.tensor(t, type or "f32"):to("cuda") end
local function why(f, ...)
  local _, message = pcall(f, ...)
  print((tostring(message):gsub("^[%w.]+:%d+: ", "")))
end
local function text(x) return flow.json.encode(x:to("cpu"):table()) end
)lua";

AttemptOutcome attempt(const std::string& body, FakeHost& host, const std::string& state) {
  auto built =
      build({{"k.lua", kKernels + ("local t = flow.task('t', { gpus = 1 }, function(ctx) " + body +
                                   " end)\nreturn flow.pipeline('p', {}, function() t() end)")}});
  REQUIRE(built.ok());
  auto vm = make_script_vm();
  REQUIRE(vm->load(built->bundle).ok());
  AttemptRequest request = attempt_of(built->plan.defs[0]);
  request.state_dir = state;
  return vm->run(request, host);
}

// Returns the lines that a task with this body prints, after the kernels above.
std::vector<std::string> run(const std::string& body, const std::string& state) {
  FakeHost host;
  AttemptOutcome ended = attempt(body, host, state);
  CHECK_FALSE(ended.lost_gpu);
  if (ended.kind == AttemptOutcome::Kind::failed) host.lines.push_back("failed: " + ended.message);
  return host.lines;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("scripts call kernels on a GPU: numbers, tensors, sizes, grids and results") {
  if (!jit::has_compiler()) return;
  jit::Folder folder;
  fake_forget();
  CHECK(run(R"(
    local x, y = on_gpu { { 1, 2 }, { 3, 4 } }, on_gpu { { 10, 20 }, { 30, 40 } }
    local out = saxpy(2, x, y)
    print(text(out), out.device, flow.json.encode(out.shape))
    print(text(saxpy(-0.5, x:t(), y)))
    print(text(saxpy(1, flow.zeros(0, 2):to("cuda"), on_gpu { 1 })))
    local z = on_gpu({ { 1, 2, 3 }, { 4, 5, 6 } }, "f64")
    local same = twice(z)
    print(text(z), same == z)
    twice(z:t()[{2, 3}])
    print(text(z))
    local sums, longest = row_sums(on_gpu { { 1, 2, 3 }, { 4, 5, 6 } })
    print(text(sums), longest:item())
    print(text(every(0.1, 0.1, -3, 2^40 | 1, 255, true)))
  )",
            folder.path) ==
        Lines{"[[12.0,24.0],[36.0,48.0]]\tcuda:0\t[2,2]", "[[9.5,18.5],[29.0,38.0]]", "[]",
              "[[2.0,4.0,6.0],[8.0,10.0,12.0]]\ttrue", "[[2.0,8.0,12.0],[8.0,20.0,24.0]]",
              "[6.0,15.0]\t3", "[0.10000000149011612,0.1,-3.0,1099511627777.0,255.0,1.0]"});
  CHECK(std::string(fake_launched()) ==
        "saxpy grid 1 1 1 block 256 1 1 shared 0\n"
        "saxpy grid 1 1 1 block 256 1 1 shared 0\n"
        "twice grid 3 1 1 block 2 1 1 shared 0\n"
        "twice grid 2 1 1 block 2 1 1 shared 0\n"
        "row_sums attribute 8 = 120000\n"
        "row_sums grid 1 1 1 block 32 1 1 shared 120000\n"
        "every_type grid 1 1 1 block 256 1 1 shared 0\n");
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path + "/kernels"), {}) == 4);
}

TEST_CASE("a kernel is loaded once per process, in whichever script state it is called") {
  if (!jit::has_compiler()) return;
  jit::Folder folder;
  std::string body = R"(for _ = 1, 3 do saxpy(1, on_gpu { 1 }, on_gpu { 1 }) end)";
  CHECK(run(body, folder.path).empty());
  int before = fake_modules();
  CHECK(run(body, folder.path).empty());
  CHECK(run(body, "/nowhere").empty());  // also without a writable state directory
  CHECK(fake_modules() == before);
}

TEST_CASE("flow.fuse compiles its chain for a GPU, and computes without it what is too small") {
  if (!jit::has_compiler()) return;
  jit::Folder folder;
  fake_forget();
  std::string body = R"(
    local f = function(a, b, n) return a * b + n end
    local x = flow.arange(1, 100002):to("f32") / 7
    local y = (x - 3):to("cuda")
    local function same(a, b, n) return flow.fuse(f, a, b, n):to("cpu") == f(a:to("cpu"), b:to("cpu"), n) end
    print(same(x:to("cuda"), y, 0.5), same(x:to("cuda"), y, 2))
    local z = x:to("cuda"):requires_grad_()
    flow.fuse(f, z, y, 1):sum():backward()
    print(z.grad:to("cpu") == y:to("cpu"))
    print(same(x[{ 1, 9 }]:reshape(3, 3):to("cuda"), y[{ 1, 3 }], 1))
  )";
  CHECK(run(body, folder.path) == Lines{"true\ttrue", "true", "true"});
  std::string line = "flow_fused grid 98 1 1 block 256 1 1 shared 0\n";
  CHECK(std::string(fake_launched()) == line + line + line);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path + "/kernels"), {}) == 1);
}

TEST_CASE("a kernel has the gradient that it declares; without one, backward is rejected") {
  if (!jit::has_compiler()) return;
  jit::Folder folder;
  CHECK(
      run(R"(
    local x, y = on_gpu { 1, 2 }:requires_grad_(), on_gpu { 3, 4 }:requires_grad_()
    saxpy(5, x, y):sum():backward()
    print(text(x.grad), text(y.grad))
    why(row_sums, on_gpu { { 1, 2 } }:requires_grad_())
    why(twice, on_gpu({ 1 }, "f64"):requires_grad_())
    print(text(flow.no_grad(twice, on_gpu({ 1 }, "f64"):requires_grad_())))
    local w = on_gpu({ 1, 2 }, "f64"):requires_grad_()
    local seen = w:detach()
    local square = (w * seen):sum()
    twice(seen)
    why(square.backward, square)
  )",
          folder.path) ==
      Lines{"[5.0,5.0]\t[1.0,1.0]",
            "the kernel `row_sums` has no `gradient`, and that of an argument is wanted: give it "
            "one, gradient = function(gradient, …) … end, or call it in flow.no_grad, or with "
            "x:detach()",
            "the kernel `twice` has no `gradient`, and that of an argument is wanted: give it one, "
            "gradient = function(gradient, …) … end, or call it in flow.no_grad, or with "
            "x:detach()",
            "[2.0]",
            "backward needs tensor f64 [2] on cuda:0 as it was when it was used, but it was "
            "changed in "
            "place since: change a copy, x:clone(), or change it after backward"});
}

TEST_CASE("a call with wrong arguments is rejected before anything starts") {
  if (!jit::has_compiler()) return;
  jit::Folder folder;
  fake_forget();
  CHECK(
      run(R"(
    local x = on_gpu { 1, 2 }
    why(saxpy, 1, x)
    why(saxpy, x, x, x)
    why(saxpy, 1, x, 2)
    why(saxpy, 1, x, flow.zeros(2))
    why(saxpy, 1, x:to("f64"), x)
    why(saxpy, true, x, x)
    why(every, 1, 1, 1.5, 1, 1, true)
    why(every, 1, 1, 1, 1, 256, true)
    why(every, 1, 1, 1, 1, 1, 1)
    why(twice, flow.zeros(2, "f64"))
    why(row_sums, x)
  )",
          folder.path) ==
      Lines{"the kernel `saxpy` takes 3 arguments, saxpy(a, x, y), not 2",
            "`a` of the kernel `saxpy` is a number, not tensor f32 [2] on cuda:0",
            "`y` of the kernel `saxpy` is a tensor, not a number",
            "the tensors of the kernel `saxpy` are on different devices, cuda:0 and cpu",
            "`x` of the kernel `saxpy` is f32, not tensor f64 [2] on cuda:0: give it x:to(\"f32\")",
            "`a` of the kernel `saxpy` is a number, not a boolean",
            "`c` of the kernel `every_type` is i32, not 1.5",
            "`e` of the kernel `every_type` is u8, not 256",
            "`f` of the kernel `every_type` is a boolean, not a number",
            "the kernel `twice` needs a GPU, and here its tensors are on the CPU: write `gpus = 1` "
            "in the task's options and move its tensors there, x:to(\"cuda\"); or give the kernel "
            "a `fallback`, a function that does the same on the CPU",
            "x:size takes a dimension of 1..1 of tensor f32 [2], not 2"});
  CHECK(std::string(fake_launched()).empty());
}

TEST_CASE("code that the driver rejects and functions that it does not find are reported") {
  if (!jit::has_compiler()) return;
  jit::Folder folder;
  std::vector<std::string> lines = run(R"(
    local unknown = flow.kernel("unknown", "__global__ void unknown(float* x) {}", "x: inout f32")
    why(unknown, on_gpu { 1 })
    local wide = flow.kernel("twice", "__global__ void twice(float* x) {}", "x: inout f32", { block = 1024 })
    why(wide, on_gpu { 1 })
    local broken = flow.kernel("twice", "__global__ void twice(float* x) { x[0] = y; }", "x: inout f32")
    why(broken, on_gpu { 1 })
  )",
                                       folder.path);
  REQUIRE(lines.size() == 6);
  CHECK(lines[0] ==
        "the kernel `unknown`: the GPU's driver can't find `_Z7unknownPf` in it: named symbol not "
        "found "
        "(CUDA_ERROR_NOT_FOUND)");
  CHECK(lines[1] ==
        "the kernel `twice`: a block of 1024 threads: its use of registers limits it to 768; make "
        "`block` smaller, or give the option --maxrregcount");
  CHECK(lines[2] == "the kernel `twice` can't be compiled for sm_90:");
  CHECK_THAT(lines[3], Catch::Matches("k.lua:\\d+: error: identifier \"y\" is undefined"));
}

TEST_CASE("a lost GPU fails the attempt that did not wait for the kernel, and its process") {
  if (!jit::has_compiler()) return;
  jit::Folder folder;
  FakeHost host;
  auto lose = [&](const std::string& body,
                  const char* fault = "an illegal memory access was encountered") {
    fake_fault = fault;
    AttemptOutcome ended = attempt(body, host, folder.path);
    fake_fault.clear();
    return ended;
  };
  AttemptOutcome unseen =
      lose("twice(flow.zeros({ 1 }, { dtype = 'f64', device = 'cuda' })) return 1");
  CHECK(unseen.kind == AttemptOutcome::Kind::failed);
  CHECK(unseen.lost_gpu);
  CHECK_FALSE(unseen.gpu_failed);
  CHECK_THAT(unseen.message, Catch::Matches("k.lua:\\d+: t: cuda:0 failed: the GPU cannot finish "
                                            "its work: an illegal memory access was encountered"));
  AttemptOutcome seen = lose("print(twice(flow.zeros({ 1 }, { dtype = 'f64', device = 'cuda' })))");
  CHECK(seen.lost_gpu);
  CHECK_THAT(seen.message, Catch::Contains("cuda:0 failed"));
  AttemptOutcome worn =
      lose("twice(flow.zeros({ 1 }, { dtype = 'f64', device = 'cuda' })) return 1",
           "uncorrectable ECC error encountered");
  CHECK(worn.lost_gpu);
  CHECK(worn.gpu_failed);
  CHECK_FALSE(attempt("return 1", host, folder.path).lost_gpu);
}
