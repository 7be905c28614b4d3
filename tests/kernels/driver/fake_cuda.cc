// A libcuda.so.1 of CUDA 11.4: the CUDA runtime finds it too old, and calls nothing else of it.
extern "C" {

int cuDriverGetVersion(int* version) {
  *version = 11040;
  return 0;
}
int cuInit(unsigned) { return 803; }  // CUDA_ERROR_SYSTEM_DRIVER_MISMATCH

}  // extern "C"
