// NVIDIA's libraries that a script's tensors and kernels use.
#include "kernels/cuda/libraries.hpp"
#include "kernels/jit/compiler.hpp"
#include "lua/state/script.hpp"

namespace flow {

std::vector<GpuLibrary> script_gpu_libraries() {
  std::vector<GpuLibrary> found = cuda::libraries();
  if (found.empty()) return found;
  auto compiler = jit::Compiler::get();
  if (compiler.ok()) {
    std::string version = (*compiler)->version();  // and the folders of its headers
    found.push_back({"NVRTC", true,
                     "NVRTC " + version.substr(0, version.find(' ')) + ", " + (*compiler)->path()});
  } else {
    found.push_back({"NVRTC", false, "`flow.kernel` fails: " + compiler.error().message});
  }
  return found;
}

}  // namespace flow
