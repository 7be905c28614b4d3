// The warning about products that no library does.
#include "kernels/cuda/own_products.hpp"

#include <catch2/catch.hpp>
#include <vector>

namespace flow::cuda {
namespace {

TEST_CASE("the first large product of a scope is reported with the reason") {
  std::vector<std::string> outer, inner;
  auto why = [] { return std::string("it is missing"); };
  note_own_product(1e12, why);  // no scope
  ProductWarnings warnings([&](const std::string& text) { outer.push_back(text); });
  note_own_product(kLargeProduct - 1, why);
  CHECK(outer.empty());
  {
    ProductWarnings nested([&](const std::string& text) { inner.push_back(text); });
    note_own_product(kLargeProduct, why);
    note_own_product(kLargeProduct, why);
  }
  CHECK(outer.empty());
  CHECK(inner == std::vector<std::string>{
                     "a large matrix product is done by flow's own kernel, which is many times "
                     "slower than cuBLASLt, above all in f16 and bf16: it is missing"});
  note_own_product(kLargeProduct, why);
  CHECK(outer == inner);
}

}  // namespace
}  // namespace flow::cuda
