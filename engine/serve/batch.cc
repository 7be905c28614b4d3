// Joining and splitting rows: copies of contiguous bytes.
#include "engine/serve/batch.hpp"

#include <fmt/format.h>

#include <algorithm>

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

bool can_join(const Tensors& a, const Tensors& b) {
  auto joins = [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.dtype == y.second.dtype &&
           x.second.shape.size() == y.second.shape.size() &&
           std::equal(x.second.shape.begin() + 1, x.second.shape.end(), y.second.shape.begin() + 1);
  };
  // Without rows the answer could not be split.
  auto same_rows = [](const Tensors& tensors) {
    return std::all_of(tensors.begin(), tensors.end(), [&](const auto& each) {
      return each.second.shape.front() == tensors.begin()->second.shape.front() &&
             each.second.shape.front() > 0;
    });
  };
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), joins) && same_rows(a) &&
         same_rows(b);
}

Tensors join_rows(const std::vector<const Tensors*>& parts) {
  Tensors joined;
  for (const auto& [name, first] : *parts.front()) {
    auto bytes = std::make_shared<std::string>();
    Tensor whole = first;
    whole.shape.front() = 0;
    for (const Tensors* part : parts) {
      const Tensor& tensor = part->at(name);
      bytes->append(*tensor.data);
      whole.shape.front() += tensor.shape.front();
    }
    whole.digest = sha256(*bytes);
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
      Tensor part = tensor;
      part.shape.front() = rows[i];
      size_t size = row_bytes * static_cast<size_t>(rows[i]);
      part.data = tensor.data.part(at, size);
      part.digest = sha256(*part.data);
      at += size;
      parts[i].emplace(name, std::move(part));
    }
  }
  return parts;
}

}  // namespace flow
