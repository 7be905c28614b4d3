// The functions of CUDA's driver for a launch: libcuda's, or a test's own.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "flow/result.hpp"
#include "kernels/jit/compiler.hpp"

namespace flow::jit {

/// As in the driver's manual: cuModuleLoadDataEx and so on. 0 is success.
struct Driver {
  int (*GetErrorName)(int code, const char** name) = nullptr;
  int (*GetErrorString)(int code, const char** text) = nullptr;
  int (*ModuleLoadDataEx)(void** module, const void* image, unsigned count, int* options,
                          void** values) = nullptr;
  int (*ModuleGetFunction)(void** function, void* module, const char* name) = nullptr;
  int (*FuncGetAttribute)(int* value, int attribute, void* function) = nullptr;
  int (*FuncSetAttribute)(void* function, int attribute, int value) = nullptr;
  int (*LaunchKernel)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                      void* stream, void** parameters, void** extra) = nullptr;
};

/// libcuda's functions, loaded at the first call. An Error if it is missing.
Result<const Driver*> system_driver();

/// A kernel that is loaded on a device, in the context that was current.
struct LoadedFunction {
  void* handle = nullptr;
  int threads_max = 0;     // per block: limited by its use of registers
  int64_t shared_set = 0;  // bytes of shared memory allowed beyond the default
};
Result<LoadedFunction> load_function(const Driver& driver, const KernelImage& image);

/// The number of threads, and the shared memory of each block.
struct Grid {
  int64_t blocks[3] = {1, 1, 1};
  int64_t threads[3] = {256, 1, 1};  // per block
  int64_t shared = 0;                // bytes
};
/// An Error names the number that exceeds a GPU's limits.
Status check_grid(const Grid& grid);

/// Launches it on the stream. `parameters` are addresses of values of the function's own types. No
/// effect if a size of the grid is 0.
Status launch(const Driver& driver, LoadedFunction& function, const Grid& grid, void* stream,
              std::vector<void*>& parameters);

}  // namespace flow::jit
