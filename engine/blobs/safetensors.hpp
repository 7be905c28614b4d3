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
  /// The type as the file names it, where no tensor of flow has it ("I8", "F8_E4M3"): then `dtype`
  /// says nothing.
  std::string foreign_type = {};
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;                      // in the order of their bytes
  std::vector<std::pair<std::string, std::string>> metadata;  // by name
};

constexpr uint64_t kSafetensorsHeaderMax = 100'000'000;  // bytes, as the reference library has it

/// Reads the header of a file of `file_size` bytes that begins with `head`, which may be the whole
/// file. Strict: tensors fill what follows the header without a gap and do not overlap, names are
/// unique, as the format asks (the reference library takes the last of two entries), and sizes are
/// what type and shape say (but those of types that are not known). As in the reference library a
/// tensor may have further fields, and the metadata may be null. Nothing is taken on the word of
/// the file: what is kept is at most a small multiple of the header that is there.
Result<SafetensorsHeader> read_safetensors(std::string_view head, uint64_t file_size);

/// Length and header of a file with these tensors, whose places are set, and which are put in the
/// reference library's order: by type, the widest first, then by name. Equal content has equal
/// bytes. An error names what no such file can hold.
Result<std::string> lay_out_safetensors(SafetensorsHeader& header);

}  // namespace flow
