// Prints the worst error of each operation at the end of the tests: the limit for other devices.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>

#include "tests/kernels/tensors.hpp"

namespace flow::kernels {

// Null if this build has no CUDA.
const Kernels* cuda_kernels() __attribute__((weak));

namespace {

// Every row of the table; add new rows here.
constexpr const char* kRows[] = {"copy",
                                 "fill",
                                 "unary",
                                 "unary_backward",
                                 "binary",
                                 "binary_number",
                                 "compare",
                                 "compare_number",
                                 "where",
                                 "clamp",
                                 "add_product",
                                 "add_quotient",
                                 "lerp",
                                 "dropout",
                                 "chain",
                                 "reduce",
                                 "extreme",
                                 "cumsum",
                                 "softmax",
                                 "softmax_backward",
                                 "cross_entropy",
                                 "cross_entropy_backward",
                                 "layer_norm",
                                 "layer_norm_backward",
                                 "rms_norm",
                                 "rms_norm_backward",
                                 "matmul",
                                 "product",
                                 "gather_rows",
                                 "scatter_add_rows",
                                 "gather_last",
                                 "scatter_add_last",
                                 "attention",
                                 "attention_backward",
                                 "rotary",
                                 "conv2d",
                                 "conv2d_backward_input",
                                 "conv2d_backward_weight",
                                 "max_pool2d",
                                 "max_pool2d_backward",
                                 "avg_pool2d",
                                 "avg_pool2d_backward",
                                 "resize",
                                 "resize_backward",
                                 "normalize",
                                 "adamw",
                                 "adamw_all",
                                 "sgd",
                                 "add_sum_of_squares",
                                 "norm_of_all",
                                 "scale_all",
                                 "top_k",
                                 "sample",
                                 "histogram",
                                 "uniform",
                                 "normal",
                                 "integers",
                                 "bernoulli",
                                 "gbm_paths",
                                 "gbm_ends",
                                 "add_norm"};
static_assert(sizeof(Kernels) == (2 + std::size(kRows)) * sizeof(void*),
              "a row is missing in kRows");

std::map<std::string, double>& errors() {
  static std::map<std::string, double> worst;
  return worst;
}

// Rows with several operations are reported per operation: "unary exp".
bool is_reported(const std::string& row) {
  for (auto& [operation, error] : errors())
    if (operation == row || operation.starts_with(row + " ")) return true;
  return false;
}

struct Report : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testRunEnded(const Catch::TestRunStats& stats) override {
    TestEventListenerBase::testRunEnded(stats);
    bool built = &cuda_kernels != nullptr && cuda_kernels() != nullptr;
    for (auto& [operation, error] : errors())
      std::printf("parity: %-28s CPU %8.3f eps, CUDA %s, no GPU here\n", operation.c_str(), error,
                  built ? "built" : "not built");
    // After a complete run every row must have been compared with its reference; otherwise the
    // program fails.
    bool is_part = Catch::getCurrentContext().getConfig()->hasTestFilters();
    for (const char* row : kRows) {
      if (is_part || is_reported(row)) continue;
      std::printf("parity: no test notes an error of `%s`\n", row);
      std::fflush(stdout);
      std::_Exit(1);
    }
  }
};

}  // namespace

void note_error(const std::string& operation, double error) {
  double& worst = errors()[operation];
  worst = std::max(worst, error);
}

CATCH_REGISTER_LISTENER(Report)

}  // namespace flow::kernels
