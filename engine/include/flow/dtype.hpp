// The types of a tensor's elements.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace flow {

/// f16 is IEEE half, bf16 the upper half of an f32, bool one byte that is 0 or 1.
enum class DType : uint8_t { f32, f16, bf16, f64, i64, i32, u8, boolean };
const char* dtype_name(DType dtype);  // "f32", …, "bool"
size_t dtype_size(DType dtype);       // bytes per element
bool parse_dtype(std::string_view name, DType& out);

}  // namespace flow
