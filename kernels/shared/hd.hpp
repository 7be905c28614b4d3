// One source for host and device: what is marked FLOW_HD is compiled for both, so that the CPU's
// tests cover the arithmetic that kernels do with indices, bits and single numbers.
#pragma once

// Always inlined: kernels/cpu/loops/isa.hpp says why.
#ifdef __CUDACC__
#define FLOW_HD __host__ __device__ __forceinline__
#else
#define FLOW_HD inline __attribute__((always_inline))
#endif
