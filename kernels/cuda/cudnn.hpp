// Convolutions by NVIDIA's library, where the machine has it.
#pragma once
#include <string>

#include "kernels/table.hpp"

namespace flow::cuda {

using namespace kernels;

/// Names the library in place of libcudnn.so.9; `off`: the convolutions are this folder's own.
constexpr const char* kCudnnVariable = "FLOW_CUDNN_LIB";

enum class Way { forward, backward_input, backward_weight };

/// One convolution y of x with w, or a gradient of it: the result is y, x or w.
struct Convolution {
  Way way;
  Conv2d o;
  View x, w, y;                // as the table's row has them
  const View* bias = nullptr;  // of forward
};

/// kUnsupported where the library is missing or does not take it.
int convolve_by_cudnn(Stream& stream, const Convolution& convolution);

/// The words of a code from `kDnnErrors` on.
const char* cudnn_error_text(int code);

/// For those who measure: what is loaded, or why nothing is; how many it did of those it was asked
/// for; and whether it is asked at all from here on.
struct CudnnUse {
  bool works = false;
  /// Where it does not work.
  bool is_off = false, is_named = false;  // by the environment
  std::string library;
  int64_t asked = 0, done = 0;
};
CudnnUse cudnn_use();
void use_cudnn(bool is_asked);

}  // namespace flow::cuda
