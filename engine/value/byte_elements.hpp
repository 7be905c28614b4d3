// Tensors of the datatype BYTES, whose elements have any size. As bytes, each element is a u32 with
// its number of bytes, little-endian, and they follow; in a script, they are a list of strings.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flow/result.hpp"
#include "flow/value.hpp"

namespace flow {

/// How many elements the shape has; nothing if a size is negative or the number is beyond 64 bits.
std::optional<uint64_t> element_count(const std::vector<int64_t>& shape);

/// Appends an element. It has less than 4 GiB.
void append_element(std::string& out, std::string_view element);
/// The same in steps: what is appended between the two calls is the element. Returns its place.
size_t begin_element(std::string& out);
void end_element(std::string& out, size_t place);

/// Takes the first element off `data`; nothing if it is cut off, or there is none.
std::optional<std::string_view> take_element(std::string_view& data);

/// How many bytes the first `count` elements of `data` have in all; nothing if there are fewer.
std::optional<size_t> size_of_elements(std::string_view data, uint64_t count);

struct ByteTensor {
  std::vector<int64_t> shape;
  std::string data;  // the elements in row-major order
};

/// The elements in row-major order as a list, `{ "a", "b", shape = { 2, 1 } }`. `data` has as many
/// as the shape says.
Value byte_tensor_value(const std::vector<int64_t>& shape, std::string_view data);

/// Whether it is a table that is to be such a list: it has `shape`, or an item [1].
bool is_byte_tensor(const Value& value);

/// The tensor of such a list; without `shape` it has one dimension. The Error, of kind user, is a
/// clause of which the value is the subject, "has …".
Result<ByteTensor> read_byte_tensor(const Value& value);

}  // namespace flow
