// The datatypes of the Open Inference Protocol, and how a tensor holds their elements. Where flow
// has no such type, it is the next one that holds every value: INT16 becomes i32. UINT64 becomes
// i64 with the same bits, so that values from 2^63 on are negative there. Elements of BYTES are no
// numbers; those of a tensor are as they are in binary data.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/serve/inference.hpp"
#include "flow/bytes.hpp"
#include "flow/dtype.hpp"

namespace flow {

struct Datatype {
  enum class Kind : uint8_t { boolean, integer, number, bytes };

  std::string_view name;
  DType dtype;  // of the tensor; of BYTES without a meaning
  Kind kind;
  uint8_t bytes;            // per element of binary data; 0: any number
  int64_t min;              // of integers
  uint64_t max;             // of integers
  std::string_view values;  // for errors: "… holds `values`"
};

/// Whether its elements are the unsigned values of i64's bits.
inline bool is_unsigned64(const Datatype& datatype) {
  return datatype.dtype == DType::i64 && datatype.max > std::numeric_limits<int64_t>::max();
}

/// Null for an unknown datatype.
const Datatype* find_datatype(std::string_view name);
/// All names, for errors.
std::string datatype_names();
/// The datatype of a tensor in a response, unless it has another one.
const Datatype& datatype_of(DType dtype);
const Datatype& datatype_of(const InferTensor& tensor);
inline bool has_bytes(const InferTensor& tensor) {
  return tensor.datatype != nullptr && tensor.datatype->kind == Datatype::Kind::bytes;
}

/// The type of a tensor's elements between processes: "f32", …, or "BYTES".
std::string_view element_type(const InferTensor& tensor);
/// False if there is no such type.
bool set_element_type(InferTensor& tensor, std::string_view type);
/// Whether the data has as many bytes, or elements of BYTES, as shape and type say.
bool has_its_size(const InferTensor& tensor);

/// Elements of binary data as those of the tensor. Shares `data` where they are the same.
Bytes widen(const Datatype& datatype, const Bytes& data);
/// The reverse. Precondition: find_misfit() finds nothing.
Bytes narrow(const Datatype& datatype, const Bytes& data);
/// The first element that the datatype, which has the tensor's dtype, cannot hold; nothing if it
/// holds all.
struct Misfit {
  size_t index;
  int64_t value;
};
std::optional<Misfit> find_misfit(const Datatype& datatype, const Bytes& data);

/// The nearest IEEE half; an infinity if the value is too large.
uint16_t nearest_half(double value);
float half_value(uint16_t half);
/// The nearest bf16; an infinity if the value is too large.
uint16_t nearest_bfloat(double value);
float bfloat_value(uint16_t bits);

}  // namespace flow
