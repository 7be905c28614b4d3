// One source for host and device: FLOW_HD functions are compiled for both, so that the CPU's tests
// cover the kernels' arithmetic on indices, bits and single numbers.
#pragma once

// Always inlined, for the reason in kernels/cpu/loops/isa.hpp.
#ifdef __CUDACC__
#define FLOW_HD __host__ __device__ __forceinline__
#else
#define FLOW_HD inline __attribute__((always_inline))
#endif
