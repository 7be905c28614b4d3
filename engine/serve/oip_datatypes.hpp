// The datatypes of the Open Inference Protocol, and how a tensor holds their elements. Where flow
// has no such type, it is the next one that holds every value: INT16 becomes i32.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "flow/bytes.hpp"
#include "flow/dtype.hpp"

namespace flow {

struct Datatype {
  enum class Kind : uint8_t { boolean, integer, number };

  std::string_view name;
  DType dtype;  // of the tensor
  Kind kind;
  uint8_t bytes;            // per element of binary data
  int64_t min, max;         // of integers
  std::string_view values;  // for errors: "… holds `values`"
};

/// Null for an unknown datatype and for BYTES.
const Datatype* find_datatype(std::string_view name);
/// All names, for errors.
std::string datatype_names();
/// The datatype of a tensor in a response.
const Datatype& datatype_of(DType dtype);

/// Elements of binary data as those of the tensor. Shares `data` where they are the same.
Bytes widen(const Datatype& datatype, const Bytes& data);

/// The nearest IEEE half; an infinity if the value is too large.
uint16_t nearest_half(double value);
float half_value(uint16_t half);
/// The nearest bf16; an infinity if the value is too large.
uint16_t nearest_bfloat(double value);
float bfloat_value(uint16_t bits);

}  // namespace flow
