#include "kernels/cuda/libraries.hpp"

#include "kernels/cuda/cublaslt.hpp"
#include "kernels/cuda/cudnn.hpp"

namespace flow::cuda {
namespace {

GpuLibrary cublaslt() {
  size_t version = lt_version();
  if (version == 0)
    return {"cuBLASLt", false,
            "not found: flow's own kernels compute matrix products, slower. Searched for "
            "libcublasLt.so.13 and libcublasLt.so.12; it comes with the CUDA toolkit"};
  return {"cuBLASLt", true,
          "cuBLASLt " + std::to_string(version / 10000) + "." +
              std::to_string(version / 100 % 100) + "." + std::to_string(version % 100)};
}

GpuLibrary cudnn() {
  CudnnUse use = cudnn_use();
  std::string variable = kCudnnVariable;
  if (use.works) return {"cuDNN", true, use.library};
  if (use.is_off) return {"cuDNN", true, use.library + ": flow's own kernels compute convolutions"};
  if (use.is_named)
    return {"cuDNN", false,
            "convolutions fail: the library that " + variable +
                " names cannot be used: " + use.library};
  return {"cuDNN", false,
          "cannot be used: flow's own kernels compute convolutions, slower. Install cuDNN 9, or "
          "name its "
          "libcudnn.so.9 by " +
              variable + ": " + use.library};
}

}  // namespace

std::vector<GpuLibrary> libraries() { return {cublaslt(), cudnn()}; }

}  // namespace flow::cuda
