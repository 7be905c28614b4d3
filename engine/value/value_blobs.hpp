// Which blobs a value refers to. All lists of blobs are made by this function.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "flow/value.hpp"

namespace flow {

/// Bytes of a tensor; nothing if its shape is impossible.
inline std::optional<uint64_t> size_of(const Tensor& tensor) {
  uint64_t size = dtype_size(tensor.dtype);
  for (int64_t extent : tensor.shape) {
    bool fits = extent >= 0 && !__builtin_mul_overflow(size, static_cast<uint64_t>(extent), &size);
    if (!fits) return std::nullopt;
  }
  return size;
}

/// Calls `visit(digest, size, origin)` for each tensor, file and file of a folder in the value,
/// repeats included. `origin` is the path of a file that is read in place, else "". `size` is empty
/// for a tensor with an impossible shape.
template <typename Visit>
void for_each_blob(const Value& value, Visit&& visit) {
  switch (value.kind()) {
    case Value::Kind::table:
      for (const Value& item : value.as_table().list) for_each_blob(item, visit);
      for (const auto& [key, field] : value.as_table().fields) for_each_blob(field, visit);
      return;
    case Value::Kind::tensor:
      visit(value.as_tensor().digest, size_of(value.as_tensor()), std::string());
      return;
    case Value::Kind::file: {
      const File& file = value.as_file();
      if (!file.is_folder) {
        visit(file.digest, std::optional<uint64_t>(file.size), file.origin);
        return;
      }
      // The digest of a folder is that of its listing, and the listing is in the value.
      for (const File::Entry& entry : file.entries) {
        visit(entry.digest, std::optional<uint64_t>(entry.size),
              file.origin.empty() ? std::string() : file.origin + "/" + entry.path);
      }
      return;
    }
    default:
      return;
  }
}

}  // namespace flow
