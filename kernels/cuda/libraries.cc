#include "kernels/cuda/libraries.hpp"

#include "kernels/cuda/cublaslt.hpp"
#include "kernels/cuda/cudnn.hpp"

namespace flow::cuda {
namespace {

GpuLibrary cublaslt() {
  size_t version = lt_version();
  LtUse use = lt_use();
  std::string variable = kLtVariable;
  if (use.works)
    return {"cuBLASLt", true,
            "cuBLASLt " + std::to_string(version / 10000) + "." +
                std::to_string(version / 100 % 100) + "." + std::to_string(version % 100) + ", " +
                use.path};
  if (use.is_off)
    return {"cuBLASLt", true, use.problem + ": flow's own kernels compute matrix products"};
  if (use.is_named)
    return {"cuBLASLt", false,
            "matrix products fail: the library that " + variable +
                " names cannot be used: " + use.problem};
  return {
      "cuBLASLt", false,
      "cannot be used: flow's own kernels compute matrix products, many times slower, above "
      "all in f16 and bf16. Install it with the CUDA toolkit or as pip's nvidia-cublas, or name "
      "its libcublasLt.so by " +
          variable + ": " + use.problem};
}

GpuLibrary cudnn() {
  CudnnUse use = cudnn_use();
  std::string variable = kCudnnVariable;
  if (use.works) return {"cuDNN", true, use.library + ", " + use.path};
  if (use.is_off)
    return {"cuDNN", true, use.library + ": flow's own kernels compute convolutions and attention"};
  if (use.is_named)
    return {"cuDNN", false,
            "convolutions, and attention in f16 and bf16, fail: the library that " + variable +
                " names cannot be used: " + use.library};
  return {
      "cuDNN", false,
      "cannot be used: flow's own kernels compute convolutions, many times slower, and attention. "
      "Install cuDNN 9, or name its libcudnn.so.9 by " +
          variable + ": " + use.library};
}

}  // namespace

std::vector<GpuLibrary> libraries() { return {cublaslt(), cudnn()}; }

}  // namespace flow::cuda
