// A build without CUDA has no cuDNN.
#include "kernels/cuda/cudnn.hpp"

namespace flow::cuda {

CudnnUse cudnn_use() { return {false, false, false, "flow was built without CUDA", 0, 0, ""}; }
void use_cudnn(bool) {}
AttentionUse attention_use() { return {}; }

}  // namespace flow::cuda
