// What the fake cuBLASLt was asked for, and what it refuses; its exported object `fake_cublaslt`.
#pragma once
#include <cstdint>
#include <map>

struct FakeCublasLt {
  std::map<int, int64_t> products;                   // by epilogue
  std::map<int, int64_t> compute_types;              // of the products
  std::map<int64_t, int64_t> rows, depths, leading;  // of the results and of the operands
  bool refuses_epilogues = false;
  int64_t alive = 0;            // descriptors
  const char* fault = nullptr;  // the first call that the manual forbids
};
