// The table of datatypes, and the conversions that a processor has no instruction for.
#include "engine/serve/oip_datatypes.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>

#include "engine/value/byte_elements.hpp"
#include "flow/result.hpp"

namespace flow {
namespace {

using Kind = Datatype::Kind;

template <typename T>
constexpr int64_t kLeast = std::numeric_limits<T>::min();
template <typename T>
constexpr uint64_t kMost = std::numeric_limits<T>::max();

// The first of a dtype is that of a response.
constexpr Datatype kDatatypes[] = {
    {"BOOL", DType::boolean, Kind::boolean, 1, 0, 1, "true and false"},
    {"UINT8", DType::u8, Kind::integer, 1, 0, kMost<uint8_t>, "whole numbers from 0 to 255"},
    {"INT32", DType::i32, Kind::integer, 4, kLeast<int32_t>, kMost<int32_t>,
     "whole numbers from -2147483648 to 2147483647"},
    {"INT64", DType::i64, Kind::integer, 8, kLeast<int64_t>, kMost<int64_t>,
     "whole numbers from -9223372036854775808 to 9223372036854775807"},
    {"INT8", DType::i32, Kind::integer, 1, kLeast<int8_t>, kMost<int8_t>,
     "whole numbers from -128 to 127"},
    {"INT16", DType::i32, Kind::integer, 2, kLeast<int16_t>, kMost<int16_t>,
     "whole numbers from -32768 to 32767"},
    {"UINT16", DType::i32, Kind::integer, 2, 0, kMost<uint16_t>, "whole numbers from 0 to 65535"},
    {"UINT32", DType::i64, Kind::integer, 4, 0, kMost<uint32_t>,
     "whole numbers from 0 to 4294967295"},
    {"UINT64", DType::i64, Kind::integer, 8, 0, kMost<uint64_t>,
     "whole numbers from 0 to 18446744073709551615"},
    {"FP16", DType::f16, Kind::number, 2, 0, 0, "numbers up to 65504"},
    {"BF16", DType::bf16, Kind::number, 2, 0, 0, "numbers up to 3.3895314e38"},
    {"FP32", DType::f32, Kind::number, 4, 0, 0, "numbers up to 3.4028235e38"},
    {"FP64", DType::f64, Kind::number, 8, 0, 0, "numbers up to 1.7976931348623157e308"},
    {"BYTES", DType::u8, Kind::bytes, 0, 0, 0, "strings"}};

template <typename From, typename To>
Bytes converted(const Bytes& data) {
  size_t count = data->size() / sizeof(From);
  auto result = std::make_shared<std::string>(count * sizeof(To), '\0');
  for (size_t i = 0; i < count; i++) {
    From from;
    std::memcpy(&from, data->data() + i * sizeof from, sizeof from);
    To to = static_cast<To>(from);
    std::memcpy(result->data() + i * sizeof to, &to, sizeof to);
  }
  return result;
}

template <typename T>
std::optional<Misfit> misfit(const Datatype& datatype, const Bytes& data) {
  for (size_t i = 0; i < data->size() / sizeof(T); i++) {
    T value;
    std::memcpy(&value, data->data() + i * sizeof value, sizeof value);
    if (value < datatype.min || std::cmp_greater(value, datatype.max)) return Misfit{i, value};
  }
  return std::nullopt;
}

// Rounds to nearest, ties to even, to a float of `exponent_bits` and `mantissa_bits`.
uint16_t narrowed(double value, int exponent_bits, int mantissa_bits) {
  auto bits = std::bit_cast<uint64_t>(value);
  auto sign = static_cast<uint16_t>(bits >> 63 << 15);
  uint16_t infinity = static_cast<uint16_t>(((1u << exponent_bits) - 1) << mantissa_bits);
  if (std::isnan(value)) return sign | infinity | static_cast<uint16_t>(1u << (mantissa_bits - 1));
  int bias = (1 << (exponent_bits - 1)) - 1;
  int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  if (exponent > bias) return sign | infinity;
  uint64_t mantissa = (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
  // Subnormal results lose more bits; below half of the smallest one is zero.
  int dropped = 52 - mantissa_bits + std::max(0, 1 - bias - exponent);
  if (dropped > 53) return sign;
  uint64_t kept = mantissa >> dropped, rest = mantissa & ((uint64_t{1} << dropped) - 1);
  uint64_t middle = uint64_t{1} << (dropped - 1);
  if (rest > middle || (rest == middle && (kept & 1) != 0)) kept++;
  // A carry moves into the exponent, which is right: the mantissa is then zero.
  if (exponent >= 1 - bias) kept += static_cast<uint64_t>(exponent + bias - 1) << mantissa_bits;
  return sign | static_cast<uint16_t>(kept);
}

}  // namespace

const Datatype* find_datatype(std::string_view name) {
  const Datatype* found = std::ranges::find(kDatatypes, name, &Datatype::name);
  return found == std::end(kDatatypes) ? nullptr : found;
}

std::string datatype_names() {
  std::string names;
  for (const Datatype& datatype : kDatatypes)
    names.append(names.empty() ? "" : ", ").append(datatype.name);
  return names;
}

const Datatype& datatype_of(DType dtype) {
  const Datatype* found = std::ranges::find(kDatatypes, dtype, &Datatype::dtype);
  FLOW_CHECK(found != std::end(kDatatypes));
  return *found;
}

const Datatype& datatype_of(const InferTensor& tensor) {
  return tensor.datatype != nullptr ? *tensor.datatype : datatype_of(tensor.dtype);
}

std::string_view element_type(const InferTensor& tensor) {
  return has_bytes(tensor) ? tensor.datatype->name : dtype_name(tensor.dtype);
}

bool set_element_type(InferTensor& tensor, std::string_view type) {
  const Datatype* datatype = find_datatype(type);
  bool is_bytes = datatype != nullptr && datatype->kind == Kind::bytes;
  tensor.datatype = is_bytes ? datatype : nullptr;
  return is_bytes || parse_dtype(type, tensor.dtype);
}

bool has_its_size(const InferTensor& tensor) {
  auto count = element_count(tensor.shape);
  if (!count) return false;
  if (has_bytes(tensor)) return size_of_elements(*tensor.data, *count) == tensor.data->size();
  uint64_t size = 0;
  return !__builtin_mul_overflow(*count, dtype_size(tensor.dtype), &size) &&
         size == tensor.data->size();
}

Bytes widen(const Datatype& datatype, const Bytes& data) {
  if (datatype.name == "INT8") return converted<int8_t, int32_t>(data);
  if (datatype.name == "INT16") return converted<int16_t, int32_t>(data);
  if (datatype.name == "UINT16") return converted<uint16_t, int32_t>(data);
  if (datatype.name == "UINT32") return converted<uint32_t, int64_t>(data);
  return data;
}

Bytes narrow(const Datatype& datatype, const Bytes& data) {
  if (datatype.name == "INT8") return converted<int32_t, int8_t>(data);
  if (datatype.name == "INT16") return converted<int32_t, int16_t>(data);
  if (datatype.name == "UINT16") return converted<int32_t, uint16_t>(data);
  if (datatype.name == "UINT32") return converted<int64_t, uint32_t>(data);
  return data;
}

std::optional<Misfit> find_misfit(const Datatype& datatype, const Bytes& data) {
  // It has all bits of the tensor.
  bool holds_all = dtype_size(datatype.dtype) == datatype.bytes;
  if (holds_all) return std::nullopt;
  if (datatype.dtype == DType::i32) return misfit<int32_t>(datatype, data);
  if (datatype.dtype == DType::i64) return misfit<int64_t>(datatype, data);
  return std::nullopt;
}

uint16_t nearest_half(double value) { return narrowed(value, 5, 10); }
uint16_t nearest_bfloat(double value) { return narrowed(value, 8, 7); }

float half_value(uint16_t half) {
  constexpr int kMantissaBits = 10, kBias = 15;
  int exponent = half >> kMantissaBits & 31;
  int mantissa = half & 0x3ff;
  float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - kBias - kMantissaBits)
                              : std::ldexp(static_cast<float>(mantissa | 0x400),
                                           exponent - kBias - kMantissaBits);
  if (exponent == 31)
    value = mantissa == 0 ? std::numeric_limits<float>::infinity()
                          : std::numeric_limits<float>::quiet_NaN();
  return (half & 0x8000) != 0 ? -value : value;
}

float bfloat_value(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

}  // namespace flow
