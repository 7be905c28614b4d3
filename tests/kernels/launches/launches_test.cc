// Counts the kernels that a training step of a GPT launches, on the emulated GPU. Prints the table;
// with cuBLASLt a product and its epilogue are one launch, as in the emulator.
#include <catch2/catch.hpp>
#include <cstdio>

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

int64_t launches_of(int layers, int steps) {
  auto built = build({{"script.lua", script_of(layers, steps)}});
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
int64_t launches_of_step(int layers) { return launches_of(layers, 3) - launches_of(layers, 2); }

TEST_CASE("a training step of a GPT launches no more kernels than listed") {
  int64_t one = launches_of_step(1), two = launches_of_step(2);
  int64_t layer = two - one, rest = one - layer;
  std::printf("launches per GPT step: %lld per layer, %lld beside them, %lld with 12 layers\n",
              static_cast<long long>(layer), static_cast<long long>(rest),
              static_cast<long long>(rest + 12 * layer));
  CHECK(layer <= 30);
  CHECK(rest <= 43);
}

}  // namespace
