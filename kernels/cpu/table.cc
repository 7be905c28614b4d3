// The CPU's table of operations.
#include "kernels/table.hpp"

#include "kernels/cpu/blas.hpp"
#include "kernels/cpu/elementwise.hpp"

namespace flow::kernels {
namespace {

const char* error_text(int code) {
  switch (code) {
    case kDone:
      return "done";
    case kNeedsScratch:
      return "the operation needs more scratch";
    case kUnsupported:
      return "the CPU has no such operation for these types";
    case cpu::kNoBlas:
      return cpu::no_blas_text();
    default:
      return "an unknown error";
  }
}

}  // namespace

const Kernels& cpu_kernels() {
  static const Kernels table = [] {
    Kernels made{};
    made.name = "cpu";
    made.error_text = error_text;
    cpu::add_elementwise_rows(made);
    cpu::add_fused_rows(made);
    cpu::add_reduction_rows(made);
    cpu::add_row_rows(made);
    cpu::add_norm_rows(made);
    cpu::add_matmul_rows(made);
    cpu::add_index_rows(made);
    cpu::add_attention_rows(made);
    cpu::add_convolution_rows(made);
    cpu::add_conv_pool_rows(made);
    cpu::add_optimizer_rows(made);
    cpu::add_topk_sampling_rows(made);
    cpu::add_random_rows(made);
    cpu::add_finance_rows(made);
    return made;
  }();
  return table;
}

}  // namespace flow::kernels
