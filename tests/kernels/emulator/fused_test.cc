// The generated source of fused chains computes the same bits as the interpreter: all operations
// and types, in packs, one by one, and with operands that are repeated.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/jit/fused_source.hpp"
#include "tests/kernels/emulator/fused_table.hpp"
#include "tests/kernels/jit/chains.hpp"

namespace flow::suite {
namespace {

using namespace kernels;

constexpr int64_t kRows = 5, kColumns = 2052;

// Of elements, with room for a row of another length.
struct Buffer {
  DType dtype;
  std::vector<double> words = std::vector<double>(kRows * (kColumns + 8) + 2);  // aligned to 16

  void put(int64_t i, double value) {
    visit_float(dtype, [&](auto type) {
      using T = decltype(type);
      reinterpret_cast<T*>(data())[i] = convert<T>(value);
    });
  }
  char* data() {
    auto at = reinterpret_cast<uintptr_t>(words.data());
    return reinterpret_cast<char*>((at + 15) / 16 * 16);
  }
};

// All NaNs count as one.
uint64_t bits_at(const View& view, int64_t row, int64_t column) {
  int64_t at = row * view.strides[0] + column * view.strides[1];
  return visit_float(view.dtype, [&](auto type) -> uint64_t {
    using T = decltype(type);
    T value = reinterpret_cast<const T*>(view.data)[at];
    if (std::isnan(convert<double>(value))) return ~uint64_t{0};
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
  });
}

// Numbers of all sizes, and some that are special.
double number(uint64_t i) {
  constexpr double kSpecial[] = {0, -0.0, INFINITY, -INFINITY, NAN, 1e-310, 1e-40, 6e4, -3, 0.5};
  uint64_t random = random_block(7, i, RandomUse::uniform).word[0];
  if (random % 50 < 10) return kSpecial[random % 50];
  double x = unit_float(static_cast<uint32_t>(random)) * 2 - 1;
  return random % 3 == 0 ? x * 30 : random % 3 == 1 ? x : x * 1e-3;
}

struct Operands {
  std::vector<Buffer> buffers;
  std::vector<View> views;

  Operands(DType dtype, int inputs, int64_t row_stride, bool repeats) {
    for (int k = 0; k <= inputs; k++) buffers.push_back({dtype});
    for (int k = 0; k <= inputs; k++) {
      for (int64_t i = 0; i < kRows * row_stride; i++)
        buffers[static_cast<size_t>(k)].put(i, number(static_cast<uint64_t>(i * 7 + k)));
      View view = dense(dtype, Shape{kRows, kColumns}, buffers[static_cast<size_t>(k)].data());
      view.strides[0] = row_stride;
      if (repeats && k == 1) view.strides[1] = 0;
      views.push_back(view);
    }
  }
};

void compare(const GeneratedChain& made, const FusedElementwise& chain, int64_t row_stride,
             bool repeats, bool& has_run) {
  Operands ours(made.dtype, chain.inputs, row_stride, repeats);
  Operands theirs(made.dtype, chain.inputs, row_stride, repeats);
  std::vector<double> wide = jit::fused_numbers(chain);
  std::vector<float> narrow(wide.begin(), wide.end());
  wide.push_back(0), narrow.push_back(0);
  const void* numbers = made.dtype == DType::f64 ? static_cast<const void*>(wide.data())
                                                 : static_cast<const void*>(narrow.data());
  auto result = static_cast<size_t>(chain.inputs);
  int allowed = made.run(numbers, ours.views.data(), ours.views[result]);
  REQUIRE(allowed > 0);
  if (allowed != made.width) return;
  has_run = true;
  Stream stream;
  REQUIRE(cuda_kernels()->fused_elementwise(stream, chain, theirs.views.data(),
                                            theirs.views[result]) == kDone);
  int64_t other = 0;
  for (int64_t row = 0; row < kRows; row++)
    for (int64_t column = 0; column < kColumns; column++)
      other +=
          bits_at(ours.views[result], row, column) != bits_at(theirs.views[result], row, column);
  INFO(fmt::format("chain {} of {}, width {}", made.chain, dtype_name(made.dtype), made.width));
  CHECK(other == 0);
}

}  // namespace

TEST_CASE("emulated: generated chains have the bits of the interpreter") {
  std::vector<FusedElementwise> chains = jit::all_chains();
  std::vector<bool> seen(chains.size());
  for (const GeneratedChain& made : generated_chains()) {
    bool has_run = false;
    // Dense rows, rows with gaps, rows that allow no packs.
    for (int64_t stride : {kColumns, kColumns + 4, kColumns + 1})
      for (bool repeats : {false, true})
        compare(made, chains[made.chain], stride, repeats, has_run);
    CHECK(has_run);
    seen[made.chain] = true;
  }
  for (size_t i = 0; i < chains.size(); i++) CHECK(seen[i]);
}

}  // namespace flow::suite
