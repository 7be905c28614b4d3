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
  uint64_t begin = 0, end = 0;  // of its bytes, from the file's start
  /// The type as the file names it, if flow has no such type ("I8", "F8_E4M3"); `dtype` is
  /// meaningless then.
  std::string foreign_type = {};
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;                      // in the order of their bytes
  std::vector<std::pair<std::string, std::string>> metadata;  // by name
};

constexpr uint64_t kSafetensorsHeaderMax = 100'000'000;  // bytes, as the reference library has it

/// Reads the header of a file of `file_size` bytes that begins with `head`, which may be the whole
/// file. Strict: tensors fill the file behind the header without gaps or overlaps, names are
/// unique, as the format requires (the reference library uses the last of two entries), and sizes
/// match type and shape (except for unknown types). As in the reference library a tensor may have
/// further fields, and the metadata may be null. The file is not trusted: the result takes at most
/// a small multiple of the present header's size.
Result<SafetensorsHeader> read_safetensors(std::string_view head, uint64_t file_size);

/// Length and header of a file with these tensors. Sets their places, and puts them in the
/// reference library's order: by type, the widest first, then by name. Equal content gives equal
/// bytes. An error names what such a file cannot hold.
Result<std::string> lay_out_safetensors(SafetensorsHeader& header);

}  // namespace flow
