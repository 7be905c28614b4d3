// Arrays in files of others: IDX (MNIST) and NPY (NumPy), as dense little-endian bytes.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "flow/value.hpp"

namespace flow::lua {

struct Array {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::string bytes;  // row-major
};

/// Strict: the header must describe exactly the bytes that follow.
Result<Array> parse_idx(std::string_view text);
Result<Array> parse_npy(std::string_view text);
/// Version 1.0 of the format. Not for bf16, which NumPy lacks.
std::string npy_header(DType dtype, const std::vector<int64_t>& shape);

}  // namespace flow::lua
