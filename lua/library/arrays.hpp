// Arrays in files of others: IDX (MNIST) and NPY (NumPy), as dense little-endian bytes.
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
/// Where in an NPY file the elements lie as a tensor has them; nothing where they have to be
/// converted: big-endian, by columns, or of a type that is widened.
struct ArrayPlace {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  size_t begin = 0, size = 0;  // bytes
};
Result<std::optional<ArrayPlace>> place_npy(std::string_view text);
/// Version 1.0 of the format. Not for bf16, which NumPy lacks.
std::string npy_header(DType dtype, const std::vector<int64_t>& shape);

}  // namespace flow::lua
