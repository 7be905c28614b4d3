// Foreign NPY files: an array has as many bytes as its shape needs, and survives writing and
// reading.
#include "lua/library/arrays.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto array = flow::lua::parse_npy({reinterpret_cast<const char*>(data), size});
  if (!array.ok()) return 0;
  auto file = flow::lua::npy_header(array->dtype, array->shape) + array->bytes;
  auto back = flow::lua::parse_npy(file);
  FLOW_CHECK(back.ok() && back->dtype == array->dtype && back->shape == array->shape &&
             back->bytes == array->bytes);
  return 0;
}
