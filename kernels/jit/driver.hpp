// What a launch needs of CUDA's driver, as a table of functions: libcuda's, or a test's own.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "flow/result.hpp"
#include "kernels/jit/compiler.hpp"

namespace flow::jit {

/// As the driver's manual has them: cuModuleLoadDataEx and so on. 0 is success.
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

/// libcuda's, loaded at the first call. An Error where there is none.
Result<const Driver*> system_driver();

/// A kernel that lies on a device, in the context that was current.
struct Function {
  void* handle = nullptr;
  int threads_max = 0;     // of a block: it may use many registers
  int64_t shared_set = 0;  // bytes of shared memory that it was allowed beyond the usual
};
Result<Function> load_function(const Driver& driver, const Image& image);

/// How many threads run, and what each block shares.
struct Grid {
  int64_t blocks[3] = {1, 1, 1};
  int64_t threads[3] = {256, 1, 1};  // of a block
  int64_t shared = 0;                // bytes
};
/// An Error that says which number no GPU takes.
Status check_grid(const Grid& grid);

/// Puts it on the stream. `parameters` are addresses of values of the function's own types. Nothing
/// is done where a size of the grid is 0.
Status launch(const Driver& driver, Function& function, const Grid& grid, void* stream,
              std::vector<void*>& parameters);

}  // namespace flow::jit
