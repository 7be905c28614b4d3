// The GPU's implementation of the table.
#include "kernels/cuda/cudnn.hpp"
#include "kernels/cuda/errors.hpp"
#include "kernels/cuda/launchers.hpp"
#ifdef FLOW_EMULATE
#include "kernels/cuda/launch.cuh"
#endif

namespace flow::cuda {

#ifdef FLOW_EMULATE
const char* error_text(int code) {
  return code >= kDnnErrors ? cudnn_error_text(code) : emulator::error_text().c_str();
}
#endif

namespace {

constexpr Kernels table() {
  Kernels k{};
  k.name = "cuda";
  k.error_text = error_text;
  k.copy = copy;
  k.fill = fill;
  k.unary = unary;
  k.unary_backward = unary_backward;
  k.binary = binary;
  k.binary_number = binary_number;
  k.compare = compare;
  k.compare_number = compare_number;
  k.where = where;
  k.clamp = clamp;
  k.add_product = add_product;
  k.add_quotient = add_quotient;
  k.lerp = lerp;
  k.dropout = dropout;
  k.fused_elementwise = fused_elementwise;
  k.reduce = reduce;
  k.extreme = extreme;
  k.cumsum = cumsum;
  k.softmax = softmax;
  k.softmax_backward = softmax_backward;
  k.cross_entropy = cross_entropy;
  k.cross_entropy_backward = cross_entropy_backward;
  k.layer_norm = layer_norm;
  k.layer_norm_backward = layer_norm_backward;
  k.rms_norm = rms_norm;
  k.rms_norm_backward = rms_norm_backward;
  k.matmul = matmul;
  k.product = product;
  k.gather_rows = gather_rows;
  k.scatter_add_rows = scatter_add_rows;
  k.gather_last = gather_last;
  k.scatter_add_last = scatter_add_last;
  k.attention = attention;
  k.attention_backward = attention_backward;
  k.rotary = rotary;
  k.conv2d = conv2d;
  k.conv2d_backward_input = conv2d_backward_input;
  k.conv2d_backward_weight = conv2d_backward_weight;
  k.max_pool2d = max_pool2d;
  k.max_pool2d_backward = max_pool2d_backward;
  k.avg_pool2d = avg_pool2d;
  k.avg_pool2d_backward = avg_pool2d_backward;
  k.resize = resize;
  k.resize_backward = resize_backward;
  k.normalize = normalize;
  k.adamw = adamw;
  k.adamw_all = adamw_all;
  k.sgd = sgd;
  k.add_sum_of_squares = add_sum_of_squares;
  k.norm_of_all = norm_of_all;
  k.scale_all = scale_all;
  k.top_k = top_k;
  k.sample = sample;
  k.histogram = histogram;
  k.uniform = uniform;
  k.normal = normal;
  k.integers = integers;
  k.bernoulli = bernoulli;
  k.gbm_paths = gbm_paths;
  k.gbm_ends = gbm_ends;
  k.add_norm = add_norm;
  return k;
}

constexpr Kernels kTable = table();

}  // namespace
}  // namespace flow::cuda

namespace flow::kernels {

const Kernels* cuda_kernels() { return &cuda::kTable; }

}  // namespace flow::kernels
