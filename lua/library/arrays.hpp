// Array formats of other programs: IDX (MNIST) and NPY (NumPy), as dense little-endian bytes.
#pragma once
#include <optional>
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
/// Position of the elements in an NPY file if a tensor can use them in place; empty if they must be
/// converted: big-endian, column-major, or a type that is widened.
struct ArrayPlace {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  size_t begin = 0, size = 0;  // bytes
};
Result<std::optional<ArrayPlace>> place_npy(std::string_view text);
/// Version 1.0 of the format. Not for bf16, which NumPy does not have.
std::string npy_header(DType dtype, const std::vector<int64_t>& shape);

}  // namespace flow::lua
