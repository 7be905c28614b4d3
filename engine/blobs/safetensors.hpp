// The safetensors format: a length, a JSON header that names tensors, their types, shapes and
// places, and their bytes. https://github.com/huggingface/safetensors is the format's home.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flow/dtype.hpp"
#include "flow/result.hpp"

namespace flow {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // its bytes are [begin, end) of the file
  /// The type as the file names it, if flow has no such type ("I8", "F8_E4M3"); `dtype` is
  /// meaningless then.
  std::string foreign_type = {};
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;                      // in the order of their bytes
  std::vector<std::pair<std::string, std::string>> metadata;  // sorted by name
};

constexpr uint64_t kSafetensorsHeaderMax = 100'000'000;  // bytes, as the reference library has it

/// Reads the header of a file of `file_size` bytes. `head` is the start of the file, at least its
/// length field and whole header; more is ignored. Strict: tensors fill the file behind the header
/// without gaps or overlaps, names are unique, as the format requires (the reference library uses
/// the last of two entries), and sizes match type and shape, for foreign types where the size of
/// an element is known. As in the reference library a tensor may have further fields, and the
/// metadata may be null. The file is not trusted: memory use is bounded by a small multiple of the
/// header's true size, whatever sizes it claims. An invalid file is an error of kind `user` whose
/// text continues the file's name: "its header is not UTF-8".
Result<SafetensorsHeader> read_safetensors(std::string_view head, uint64_t file_size);

/// Returns the length field and header of a file with these tensors, none of a foreign type. Sorts
/// `header.tensors` as the reference library does, by type, the widest first, then by name, and
/// sets `begin` and `end`. Write the returned bytes, then the data of the tensors in the new order.
/// Equal content gives equal bytes. Returns an error of kind `user` for what such a file cannot
/// hold, for example two tensors of one name.
Result<std::string> lay_out_safetensors(SafetensorsHeader& header);

}  // namespace flow
