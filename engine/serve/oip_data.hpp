// The limits of a request, and the data of one input: from JSON or binary data to the bytes of a
// tensor.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "engine/serve/oip_datatypes.hpp"
#include "flow/bytes.hpp"
#include "flow/result.hpp"

namespace flow {

/// More elements than this are an error.
constexpr size_t kElementsMax = 64u << 20;
constexpr size_t kDimensionsMax = 8;
constexpr size_t kInputsMax = 64;
constexpr size_t kOutputsMax = 64;
constexpr size_t kIdBytesMax = 1024;

struct InputHead {
  std::string place;  // "inputs[0]"
  std::string name;
  const Datatype* datatype = nullptr;
  size_t count = 0;  // of elements, as the shape says
};

/// Checks the datatype, and that the shape is not too large. No size is negative.
Result<InputHead> input_head(const std::string& place, const std::string& name,
                             const std::string& datatype, const std::vector<int64_t>& shape);

/// Reads a flat or nested array, whose nesting need not be that of the shape. `data` is the part of
/// `json` that begins with the array; `json` is padded.
Result<Bytes> read_json_data(const InputHead& input, std::string_view json, std::string_view data);
/// Whether `data`, named `place`, is the elements of an input of BYTES.
Status check_byte_elements(const InputHead& input, const std::string& place, std::string_view data);
/// Shares `data` if the tensor has the same elements.
Result<Bytes> read_binary_data(const InputHead& input, const Bytes& data);

}  // namespace flow
