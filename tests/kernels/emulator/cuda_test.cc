// The CUDA kernels, run by the emulator in both orders, pass the suite.
#include <catch2/catch.hpp>

#include "tests/kernels/emulator/emulator.hpp"
#include "tests/kernels/suite/suite.hpp"

namespace flow::suite {
namespace {

void run_with(Runner& runner, void (*check)(Suite&)) {
  Suite suite(runner, test_seed());
  check(suite);
  for (const std::string& miss : suite.misses) FAIL_CHECK(miss);
  for (const auto& [row, line] : suite.lines)
    if (line.misses > 0)
      FAIL_CHECK(row << ": " << line.misses << " of " << line.checks << " checks missed");
}

void run(void (*check)(Suite&)) {
  HostRunner runner(*cuda_kernels(), [](bool reversed) { emulator::reversed = reversed; });
  run_with(runner, check);
}

TEST_CASE("emulated: elementwise") { run(check_elementwise); }
TEST_CASE("emulated: reductions") { run(check_reductions); }
TEST_CASE("emulated: rows") { run(check_rows); }
TEST_CASE("emulated: norms") { run(check_norms); }
TEST_CASE("emulated: matmul") { run(check_matmuls); }
TEST_CASE("emulated: indices") { run(check_indices); }
TEST_CASE("emulated: attention") { run(check_attention); }
TEST_CASE("emulated: conv_pool") { run(check_conv_pool); }
TEST_CASE("emulated: optimizers") { run(check_optimizers); }
TEST_CASE("emulated: topk and sampling") { run(check_choosing); }
TEST_CASE("emulated: random numbers") { run(check_random); }
TEST_CASE("emulated: finance") { run(check_finance); }

// The CPU kernels pass it too: the suite demands no more than the table promises.
TEST_CASE("cpu: all rows") {
  HostRunner runner(cpu_kernels(), [](bool) {});
  for (auto check : {check_elementwise, check_reductions, check_rows, check_norms, check_matmuls,
                     check_indices, check_attention, check_conv_pool, check_optimizers,
                     check_choosing, check_random, check_finance})
    run_with(runner, check);
}

}  // namespace
}  // namespace flow::suite
