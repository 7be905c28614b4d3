// Joining and splitting rows: copies of contiguous bytes, and views of them.
#include "engine/serve/batch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace flow {

int64_t rows_of(const Tensors& inputs) {
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
  for (const auto& [name, tensor] : tensors) bytes += tensor.data->size();
  return bytes;
}

std::string batch_signature(const Tensors& inputs) {
  std::string signature;
  for (const auto& [name, tensor] : inputs) {
    // Without rows the answer could not be split.
    const auto& shape = tensor.shape;
    if (shape.empty() || shape.front() <= 0 ||
        shape.front() != inputs.begin()->second.shape.front())
      return "";
    fmt::format_to(std::back_inserter(signature), "{}:{}{}", name.size(), name,
                   dtype_name(tensor.dtype));
    for (size_t i = 1; i < shape.size(); i++)
      fmt::format_to(std::back_inserter(signature), ",{}", shape[i]);
    signature += ';';
  }
  return signature;
}

Tensors zero_rows(const Tensors& like, int64_t rows) {
  Tensors zeros;
  for (const auto& [name, tensor] : like) {
    size_t row_bytes = tensor.data->size() / static_cast<size_t>(tensor.shape.front());
    Tensor part;
    part.dtype = tensor.dtype;
    part.shape = tensor.shape;
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
    Tensor whole;
    whole.dtype = first.dtype;
    whole.shape = first.shape;
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
    size_t row_bytes = total == 0 ? 0 : tensor.data->size() / static_cast<size_t>(total);
    size_t at = 0;
    for (size_t i = 0; i < rows.size(); i++) {
      size_t size = row_bytes * static_cast<size_t>(rows[i]);
      Tensor part;
      part.dtype = tensor.dtype;
      part.shape = tensor.shape;
      part.shape.front() = rows[i];
      part.data = tensor.data.part(at, size);
      at += size;
      parts[i].emplace(name, std::move(part));
    }
  }
  return parts;
}

}  // namespace flow
