// A libcuda.so.1 with which cuDNN makes plans on a machine without a GPU: it "loads" the kernels
// that cuDNN compiles, and everything else fails. The functions are those that cuDNN 9.10 to 9.28
// resolves.
#include <dlfcn.h>

#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kInvalidLibrary = 34, kNotFound = 500;  // CUDA's: a stub, no such function

// Nothing looks behind these.
char library, kernel, function;

}  // namespace

EXPORT int cuDriverGetVersion(int* version) {
  *version = 13010;
  return 0;
}
EXPORT int cuLibraryLoadData(void** to) {
  *to = &library;
  return 0;
}
EXPORT int cuLibraryGetKernel(void** to) {
  *to = &kernel;
  return 0;
}
EXPORT int cuKernelGetFunction(void** to) {
  *to = &function;
  return 0;
}
EXPORT int cuLibraryUnload(void*) { return 0; }
EXPORT int cuFuncSetAttribute(void*, int, int) { return 0; }
EXPORT int cuGetErrorString(int, const char** text) {
  *text = "there is no driver";
  return 0;
}
EXPORT int cuGetErrorName(int, const char** text) {
  *text = "NO_DRIVER";
  return 0;
}

#define FAILS(name) \
  EXPORT int name() { return kInvalidLibrary; }
FAILS(cuInit)
FAILS(cuCtxGetCurrent)
FAILS(cuCtxGetLimit)
FAILS(cuCtxPopCurrent)
FAILS(cuCtxPushCurrent)
FAILS(cuDeviceGet)
FAILS(cuDeviceGetCount)
FAILS(cuKernelGetAttribute)
FAILS(cuKernelSetAttribute)
FAILS(cuLaunchCooperativeKernel)
FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuLibraryLoadFromFile)
FAILS(cuLinkAddData)
FAILS(cuLinkComplete)
FAILS(cuLinkCreate)
FAILS(cuLinkDestroy)
FAILS(cuModuleGetFunction)
FAILS(cuModuleLoadData)
FAILS(cuModuleUnload)
FAILS(cuOccupancyMaxPotentialClusterSize)
FAILS(cuStreamGetCtx)
FAILS(cuTensorMapEncodeIm2col)
FAILS(cuTensorMapEncodeTiled)

EXPORT int cuGetProcAddress_v2(const char* name, void** to, int, uint64_t, int* status) {
  Dl_info here;
  dladdr(&library, &here);
  *to = dlsym(dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD), name);
  if (status) *status = *to ? 0 : 1;
  return *to ? 0 : kNotFound;
}
