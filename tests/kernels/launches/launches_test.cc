// Counts the kernels that a training step of a GPT launches, on the emulated GPU. Prints the table;
// with cuBLASLt a product and its epilogue are one launch, as in the emulator. And counts what a
// call of flow.graph does instead.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <functional>

#include "kernels/cuda/device.hpp"
#include "kernels/tensor/runtime.hpp"
#include "tests/kernels/emulator/device_control.hpp"
#include "tests/kernels/emulator/emulator.hpp"
#include "tests/lua/vm.hpp"

using namespace flow;
using namespace flow::test;

namespace {

// 128 tokens a step, as a product of so few rows is not split.
std::string script_of(int layers, int steps) {
  return "local flow = require 'flow'\n"
         "local t = flow.task('t', function(ctx)\n"
         "  local model = flow.models.gpt { vocabulary = 131, context = 64, width = 32, heads = 2, "
         "layers = " +
         std::to_string(layers) +
         " }\n"
         "  model:to('cuda')\n"
         "  local opt = flow.optim.adamw(model, { lr = 1e-3 })\n"
         "  local x = flow.randint(1, 131, { 2, 64 }, { seed = 1, device = 'cuda' })\n"
         "  for step = 1, " +
         std::to_string(steps) +
         " do\n"
         "    local loss = flow.autocast('bf16', function() return model:loss(x, x) end)\n"
         "    opt:zero_grad()\n"
         "    loss:backward()\n"
         "    flow.optim.clip_grad_norm(model, 1)\n"
         "    opt:step()\n"
         "  end\n"
         "end)\n"
         "return flow.pipeline('p', {}, function() t() end)\n";
}

// Generates after a prompt of 8 tokens, within the context.
std::string generation_of(int layers, int tokens) {
  return "local flow = require 'flow'\n"
         "local t = flow.task('t', function(ctx)\n"
         "  local model = flow.models.gpt { vocabulary = 131, context = 64, width = 32, heads = 2, "
         "layers = " +
         std::to_string(layers) +
         " }\n"
         "  model:to('cuda')\n"
         "  model:generate({ 1, 2, 3, 4, 5, 6, 7, 8 }, " +
         std::to_string(tokens) +
         ", { dtype = 'bf16' })\n"
         "end)\n"
         "return flow.pipeline('p', {}, function() t() end)\n";
}

int64_t launches_of(const std::string& script) {
  auto built = build({{"script.lua", script}});
  REQUIRE(built.ok());
  auto vm = make_script_vm();
  REQUIRE(vm->load(built->bundle).ok());
  FakeHost host;
  int64_t before = emulator::launches;
  AttemptOutcome ended = vm->run(attempt_of(built->plan.defs[built->plan.nodes.at(0).def]), host);
  INFO(ended.message);
  REQUIRE(ended.kind != AttemptOutcome::Kind::failed);
  return emulator::launches - before;
}

// Of the third step: the first ones create what later ones keep.
int64_t launches_of_step(int layers) {
  return launches_of(script_of(layers, 3)) - launches_of(script_of(layers, 2));
}
int64_t launches_of_token(int layers) {
  return launches_of(generation_of(layers, 12)) - launches_of(generation_of(layers, 11));
}

TEST_CASE("a training step of a GPT launches no more kernels than listed") {
  int64_t one = launches_of_step(1), two = launches_of_step(2);
  int64_t layer = two - one, rest = one - layer;
  std::printf("launches per GPT step: %lld per layer, %lld beside them, %lld with 12 layers\n",
              static_cast<long long>(layer), static_cast<long long>(rest),
              static_cast<long long>(rest + 12 * layer));
  CHECK(layer <= 30);
  CHECK(rest <= 43);
}

// Two of a layer are attention's: that of the splits and the one that joins them.
TEST_CASE("a token that a GPT generates launches no more kernels than listed") {
  int64_t one = launches_of_token(1), two = launches_of_token(2);
  int64_t layer = two - one, rest = one - layer;
  std::printf("launches per generated token: %lld per layer, %lld beside them\n",
              static_cast<long long>(layer), static_cast<long long>(rest));
  CHECK(layer <= 11);
  CHECK(rest <= 20);
}

// ---- flow.graph

using emulator::device_control;

// Runs the body of a task; `seen` is called for each line that it prints.
class WatchingHost : public FakeHost {
 public:
  explicit WatchingHost(std::function<void(std::string_view)> seen) : seen_(std::move(seen)) {}
  void log(std::string_view text) override { seen_(text); }

 private:
  std::function<void(std::string_view)> seen_;
};

void run_task(const std::string& body, std::function<void(std::string_view)> seen) {
  auto built = build(
      {{"script.lua", "local flow = require 'flow'\nlocal t = flow.task('t', function(ctx)\n" +
                          body + "\nend)\nreturn flow.pipeline('p', {}, function() t() end)\n"}});
  REQUIRE(built.ok());
  auto vm = make_script_vm();
  REQUIRE(vm->load(built->bundle).ok());
  WatchingHost host(std::move(seen));
  AttemptOutcome ended = vm->run(attempt_of(built->plan.defs[built->plan.nodes.at(0).def]), host);
  INFO(ended.message);
  REQUIRE(ended.kind != AttemptOutcome::Kind::failed);
}

const char kTraining[] =
    "local model = flow.models.gpt { vocabulary = 131, context = 64, width = 32, heads = 2, "
    "layers = 2, dropout = 0.1 }:to('cuda')\n"
    "local opt = flow.optim.adamw(model, { lr = 1e-3 })\n"
    "local step = flow.graph(function(x, y)\n"
    "  local loss = flow.autocast('bf16', function() return model:loss(x, y) end)\n"
    "  opt:zero_grad()\n"
    "  loss:backward()\n"
    "  flow.optim.clip_grad_norm(model, 1)\n"
    "  opt:step()\n"
    "  return loss\n"
    "end)\n"
    "local function tokens(n) return flow.randint(1, 131, { 2, n }, { device = 'cuda' }) end\n";

TEST_CASE("a call of flow.graph is one launch, and copies of arguments and results") {
  struct Counts {
    int64_t kernels;
    int graphs, copies, waits;
  };
  std::vector<Counts> seen;
  run_task(std::string(kTraining) +
               "local x = tokens(64)\n"
               "for i = 1, 5 do step(x, x) print('step') end\n",
           [&](std::string_view) {
             seen.push_back({emulator::launches, device_control().graph_launches,
                             device_control().copies, device_control().waits});
           });
  REQUIRE(seen.size() == 5);
  auto of = [&](size_t call) {  // the difference to the call before
    return Counts{
        seen[call].kernels - seen[call - 1].kernels, seen[call].graphs - seen[call - 1].graphs,
        seen[call].copies - seen[call - 1].copies, seen[call].waits - seen[call - 1].waits};
  };
  for (size_t call : {3, 4}) {
    Counts now = of(call);
    if (call == 4)
      std::printf(
          "launches per repeated GPT step: %d graph, %lld kernels for 2 arguments and 1 "
          "result, %d copy from the host\n",
          now.graphs, static_cast<long long>(now.kernels), now.copies);
    CHECK(now.graphs == 1);
    CHECK(now.kernels == 3);
    CHECK(now.copies == 1);
  }
  CHECK(of(2).graphs == 1);
}

TEST_CASE("the graphs of a function are bounded, and freed with it") {
  int most = 0;
  size_t held = 0, held_before = 0, held_after = 0;
  int graphs_after = -1;
  run_task(std::string(kTraining) +
               "print('begin')\n"
               "for n = 1, 10 do for i = 1, 2 do step(tokens(n), tokens(n)) end print('step') end\n"
               "step = nil\n"
               "opt:zero_grad()\n"
               "collectgarbage() collectgarbage()\n"
               "print('end')\n",
           [&](std::string_view line) {
             if (line == "begin") held_before = tensors::device_bytes_held();
             most = std::max<int>(most, device_control().graphs);
             held = std::max(held, tensors::device_bytes_held());
             if (line != "end") return;
             graphs_after = device_control().graphs;
             held_after = tensors::device_bytes_held();
           });
  CHECK(most == 8);
  CHECK(graphs_after == 0);
  CHECK(device_control().graphs == 0);
  CHECK(held >= held_before + 8 * (size_t{2} << 20));
  CHECK(held_after < held_before + (size_t{1} << 20));
}

// ---- graphs and the memory of the GPU

// 4 MiB each.
const char kWeight[] =
    "local w = flow.nn.parameter(flow.ones({ 1024, 1024 }, 'cuda'))\n"
    "local runs = 0\n"
    "local function compute_loss(x) runs = runs + 1 w.grad = nil local loss = (w * x):sum() "
    "loss:backward() return loss end\n"
    "local step = flow.graph(compute_loss)\n"
    "local x = flow.full({ 1024, 1024 }, 2, 'cuda')\n";

// Leaves that many bytes of the GPU to this process.
void leave_free(size_t bytes) {
  Result<cuda::DeviceInfo> info = cuda::describe(0);  // waits for pending releases
  Result<cuda::PoolUse> pool = cuda::pool_use(0);
  REQUIRE((info.ok() && pool.ok()));
  device_control().others_hold = info->memory_total - pool->used - bytes;
}

TEST_CASE("what the pool caches is released before a recording") {
  struct Restored {
    ~Restored() {
      device_control().is_cache_in_pieces = false;
      device_control().others_hold = 0;
    }
  } restored;
  constexpr size_t kMegabyte = size_t{1} << 20;
  int launched = device_control().graph_launches;
  std::vector<std::string> lines;
  run_task(std::string(kWeight) +
               "step(x)\n"
               "collectgarbage()\n"
               "local cached = flow.zeros({ 6 << 20 }, 'cuda')\n"
               "print('full')\n"
               "cached = nil\n"
               "for i = 1, 3 do step(x) end\n"
               "print(runs, w.grad[1][1])\n",
           [&](std::string_view line) {
             lines.emplace_back(line);
             if (line != "full") return;
             leave_free(8 * kMegabyte);
             device_control().is_cache_in_pieces = true;
           });
  REQUIRE(!lines.empty());
  CHECK(lines.back() == "2\t2.0");
  CHECK(device_control().graph_launches == launched + 3);
}

TEST_CASE("a function whose graph has no room on the GPU is called each time") {
  struct Restored {
    ~Restored() { device_control().others_hold = 0; }
  } restored;
  constexpr size_t kMegabyte = size_t{1} << 20;
  int launched = device_control().graph_launches;
  std::vector<std::string> lines;
  run_task(std::string(kWeight) +
               "math.randomseed(1)\n"
               "compute_loss(x)\n"
               "collectgarbage()\n"
               "print('full')\n"
               "for i = 1, 5 do\n"
               "  collectgarbage()\n"
               "  local loss = step(x * i)\n"
               "  print(i, w.grad[1][1], loss:item() == 2 * i * 1024 * 1024)\n"
               "end\n"
               "print(runs)\n",
           [&](std::string_view line) {
             lines.emplace_back(line);
             if (line == "full") leave_free(10 * kMegabyte);
           });
  REQUIRE(lines.size() == 8);
  CHECK(lines[1] == "1\t2.0\ttrue");
  CHECK_THAT(lines[2], Catch::StartsWith("flow.graph: cuda:0 has no room for a graph, so its "
                                         "function is called each time: "));
  for (size_t i = 2; i <= 5; i++)
    CHECK(lines[i + 1] == std::to_string(i) + "\t" + std::to_string(2 * i) + ".0\ttrue");
  CHECK(lines.back() == "7");  // one run of them was the recording that was given up
  CHECK(device_control().graph_launches == launched);
}

// ---- graphs and several GPUs

struct TwoGpus {
  TwoGpus() { device_control().devices = 2; }
  ~TwoGpus() { device_control().devices = 1; }
};

TEST_CASE("a graph without tensors as arguments is on the GPU that its function uses") {
  TwoGpus gpus;
  int launched = device_control().graph_launches;
  std::vector<std::string> lines;
  run_task(
      "local other = flow.zeros({ 3 }, 'cuda:0')\n"
      "local total = flow.zeros({ 3 }, 'cuda:1')\n"
      "local step = flow.graph(function() total:add_(1) end)\n"
      "step()\n"
      "other = nil\n"
      "collectgarbage()\n"  // chooses the other one
      "for i = 1, 3 do step() end\n"
      "print(total[1])\n",
      [&](std::string_view line) { lines.emplace_back(line); });
  CHECK(lines == std::vector<std::string>{"4.0"});
  CHECK(device_control().graph_launches == launched + 3);
}

TEST_CASE("a copy between GPUs is not recorded") {
  TwoGpus gpus;
  std::vector<std::string> lines;
  run_task(
      "local there = flow.zeros({ 3 }, 'cuda:1')\n"
      "local run = flow.graph(function(x) return x + there:to('cuda:0') end)\n"
      "local x = flow.ones({ 3 }, 'cuda:0')\n"
      "run(x)\n"
      "print(select(2, pcall(run, x)))\n",
      [&](std::string_view line) { lines.emplace_back(line); });
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0],
             Catch::EndsWith("`to`: flow.graph cannot record a copy from cuda:1 to cuda:0: make "
                             "it before the call, and pass it as an argument"));
}

TEST_CASE("a recording ends although its GPU has failed") {
  TwoGpus gpus;
  std::vector<std::string> lines;
  run_task(
      "local other = flow.zeros({ 3 }, 'cuda:0')\n"
      "local fails = false\n"
      "local run = flow.graph(function(x)\n"
      "  if not fails then return x * 2 end\n"
      "  other = nil\n"
      "  collectgarbage()\n"
      "  print('fail')\n"
      "  error('own', 0)\n"
      "end)\n"
      "local x = flow.ones({ 3 }, 'cuda:1')\n"
      "run(x)\n"
      "fails = true\n"
      "print(select(2, pcall(run, x)))\n"
      "print(flow.is_capturing())\n",
      [&](std::string_view line) {
        lines.emplace_back(line);
        device_control().devices = line == "fail" ? 1 : 2;
      });
  CHECK(lines == std::vector<std::string>{"fail", "own", "false"});
}

}  // namespace
