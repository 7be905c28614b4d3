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

}  // namespace
