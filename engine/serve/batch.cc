// Joining and splitting rows: copies of contiguous bytes, and views of them.
#include "engine/serve/batch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "engine/serve/oip_datatypes.hpp"
#include "engine/serve/request_parameters.hpp"
#include "engine/value/byte_elements.hpp"

namespace flow {

namespace {

constexpr uint64_t kStringBytes = 64;  // of memory for a string, besides its characters
constexpr size_t kLengthBytes = 4;     // of an element of BYTES without any byte

/// Elements of a row. The tensor has dimensions.
uint64_t row_elements(const Tensor& tensor) {
  return element_count({tensor.shape.begin() + 1, tensor.shape.end()}).value_or(0);
}

/// Whether no row has an element: then no data bounds how many rows a shape such as [67108864,0]
/// names.
bool are_rows_empty(const Tensors& inputs) {
  return std::ranges::all_of(inputs, [](const auto& input) {
    return !input.second.shape.empty() && row_elements(input.second) == 0;
  });
}

}  // namespace

int64_t rows_of(const Tensors& inputs) {
  if (are_rows_empty(inputs)) return 1;
  int64_t rows = -1;
  for (const auto& [name, tensor] : inputs) {
    int64_t first = tensor.shape.empty() ? 1 : tensor.shape.front();
    if (rows >= 0 && rows != first) return 1;
    rows = first;
  }
  return std::max<int64_t>(rows, 1);
}

uint64_t bytes_of(const Tensors& tensors) {
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    bytes += tensor.data->size();
    if (has_bytes(tensor)) bytes += element_count(tensor.shape).value_or(0) * kStringBytes;
  }
  return bytes;
}

uint64_t bytes_of(const InferRequest& request) {
  return bytes_of(request.inputs) + bytes_of(request.parameters);
}

std::string batch_signature(const Tensors& inputs) {
  std::string signature;
  if (are_rows_empty(inputs)) return signature;
  for (const auto& [name, tensor] : inputs) {
    // Without rows the answer could not be split.
    const auto& shape = tensor.shape;
    if (shape.empty() || shape.front() <= 0 ||
        shape.front() != inputs.begin()->second.shape.front())
      return "";
    fmt::format_to(std::back_inserter(signature), "{}:{}{}", name.size(), name,
                   element_type(tensor));
    for (size_t i = 1; i < shape.size(); i++)
      fmt::format_to(std::back_inserter(signature), ",{}", shape[i]);
    signature += ';';
  }
  return signature;
}

Tensors zero_rows(const Tensors& like, int64_t rows) {
  Tensors zeros;
  for (const auto& [name, tensor] : like) {
    size_t row_bytes = has_bytes(tensor)
                           ? row_elements(tensor) * kLengthBytes
                           : tensor.data->size() / static_cast<size_t>(tensor.shape.front());
    InferTensor part = tensor;
    part.shape.front() = rows;
    part.data = std::make_shared<const std::string>(row_bytes * static_cast<size_t>(rows), '\0');
    zeros.emplace(name, std::move(part));
  }
  return zeros;
}

Tensors join_rows(const std::vector<const Tensors*>& parts) {
  if (parts.size() == 1) return *parts.front();
  Tensors joined;
  for (const auto& [name, first] : *parts.front()) {
    InferTensor whole = first;
    whole.shape.front() = 0;
    size_t size = 0;
    for (const Tensors* part : parts) size += part->at(name).data->size();
    auto bytes = std::make_shared<std::string>();
    bytes->reserve(size);
    for (const Tensors* part : parts) {
      const Tensor& tensor = part->at(name);
      bytes->append(*tensor.data);
      whole.shape.front() += tensor.shape.front();
    }
    whole.data = std::move(bytes);
    joined.emplace(name, std::move(whole));
  }
  return joined;
}

namespace {

/// Bytes of the rows that begin at the byte `at`, of a tensor that has `total` rows.
size_t bytes_of_rows(const InferTensor& tensor, int64_t total, size_t at, int64_t rows) {
  auto count = static_cast<size_t>(rows);
  if (!has_bytes(tensor))
    return total == 0 ? 0 : tensor.data->size() / static_cast<size_t>(total) * count;
  auto size = size_of_elements(tensor.data->substr(at), row_elements(tensor) * count);
  FLOW_CHECK(size.has_value());  // has_its_size() holds for it
  return *size;
}

}  // namespace

Result<std::vector<Tensors>> split_rows(const Tensors& outputs, const std::vector<int64_t>& rows) {
  int64_t total = 0;
  for (int64_t each : rows) total += each;
  std::vector<Tensors> parts(rows.size());
  for (const auto& [name, tensor] : outputs) {
    if (tensor.shape.empty() || tensor.shape.front() != total) {
      return Error{ErrorKind::task,
                   fmt::format("`predict` got {} rows and its output `{}` does not have as many: "
                               "every output needs one row per input row",
                               total, name)};
    }
    size_t at = 0;
    for (size_t i = 0; i < rows.size(); i++) {
      size_t size = bytes_of_rows(tensor, total, at, rows[i]);
      InferTensor part = tensor;
      part.shape.front() = rows[i];
      part.data = tensor.data.part(at, size);
      at += size;
      parts[i].emplace(name, std::move(part));
    }
  }
  return parts;
}

}  // namespace flow
