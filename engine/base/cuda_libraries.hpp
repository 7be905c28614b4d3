// Where NVIDIA's libraries are: one search for cuBLASLt, cuDNN, NCCL and NVRTC, none of which is
// linked.
#pragma once
#include <string>
#include <vector>

namespace flow {

struct CudaLibraryName {
  const char* variable = "";       // environment variable that names the file, or is `off`
  std::vector<std::string> files;  // "libcudnn.so.9", the preferred release first
};

/// The environment that the search reads. Empty members are skipped.
struct CudaSearch {
  std::string cuda_home, cuda_path, conda_prefix, virtual_env;
  std::string path;           // of programs: where python3 is
  std::string home;           // of the user, for packages of `pip install --user`
  std::string driver_folder;  // of libcuda.so.1
  std::string root = "/";     // of /usr/local and /opt

  /// Of this process. Loads libcuda.so.1 to find its folder.
  static CudaSearch of_process();
};

/// The existing folders in the order of the search: CUDA_HOME and CUDA_PATH, VIRTUAL_ENV, conda,
/// the packages of the python3 in PATH, the driver's folder, then /usr/local/cuda and its like.
std::vector<std::string> cuda_library_folders(const CudaSearch& search);
/// The folders of CUDA's headers there, in the same order.
std::vector<std::string> cuda_header_folders(const CudaSearch& search);

struct LoadedCudaLibrary {
  void* handle = nullptr;  // of dlopen, never closed; null: see `problem`
  std::string path;        // the file that was loaded, without links
  std::string problem;
  bool is_off = false, is_named = false;  // by the variable
};

/// Loads the file that the variable names, and no other if it is set. Otherwise each of the files
/// is looked for in the system's search path (LD_LIBRARY_PATH, ldconfig), then in the folders.
LoadedCudaLibrary load_cuda_library(const CudaLibraryName& name, const CudaSearch& search);
LoadedCudaLibrary load_cuda_library(const CudaLibraryName& name);

}  // namespace flow
