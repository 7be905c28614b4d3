// Convolutions and attention by NVIDIA's library, if the machine has it.
#pragma once
#include <string>

#include "kernels/table.hpp"

namespace flow::cuda {

using namespace kernels;

/// Names a library instead of libcudnn.so.9; `off`: uses only this folder's own kernels.
constexpr const char* kCudnnVariable = "FLOW_CUDNN_LIB";

/// `own`: this folder's own kernels compute attention, not cuDNN. Another value is an error.
constexpr const char* kAttentionVariable = "FLOW_ATTENTION";

enum class ConvolutionDirection { forward, backward_input, backward_weight };

/// One convolution y of x with w, or a gradient of it: the result is y, x or w.
struct Convolution {
  ConvolutionDirection way;
  Conv2d o;
  View x, w, y;                // as in the table
  const View* bias = nullptr;  // for forward
};

/// kUnsupported if the library is missing or does not support it.
int convolve_by_cudnn(Stream& stream, const Convolution& convolution);

/// The text of an error code from `kDnnErrors` on.
const char* cudnn_error_text(int code);

/// For measurements: the loaded library, or why there is none; how many of the requested
/// convolutions it did; and whether to use it from now on.
struct CudnnUse {
  bool works = false;
  /// Why it is not used.
  bool is_off = false, is_named = false;  // by the environment
  std::string library;
  int64_t asked = 0, done = 0;
  std::string path;  // of the library's file
};
CudnnUse cudnn_use();
void use_cudnn(bool is_asked);

/// How many calls of attention had operands for cuDNN, and how many of them it did.
struct AttentionUse {
  int64_t asked = 0, done = 0;
  bool is_off = false;  // by the environment
  std::string problem;  // why cuDNN is not used any more
};
AttentionUse attention_use();

}  // namespace flow::cuda
