// What ctx:checkpoint keeps. A state with tensors is a safetensors file: each tensor under its path
// in the state ("model.1.weight"), all else in the metadata, so that other programs read the
// tensors. A state without is a value. What the database keeps of either is a row.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "engine/blobs/safetensors.hpp"
#include "flow/value.hpp"

namespace flow {

/// A file to be: its head, and then these bytes one after the other.
struct CheckpointFile {
  std::string head;
  std::vector<Bytes> tensors;
};

bool holds_tensors(const Value& state);
/// The list of files and folders that a state holds.
Value files_in(const Value& state);
/// `state`, whose tensors have their bytes, as a file. The Error says what is too large.
Result<CheckpointFile> flatten_checkpoint(const Value& state);
/// The state that is in a file; its tensors are pieces of `content`. The Error says what is wrong.
Result<Value> unflatten_checkpoint(const Bytes& content);

/// What the database keeps: the state itself, or where its file is.
struct CheckpointRow {
  std::optional<Value> state;
  std::string file;  // below the state's folder
  Digest digest;     // of the file
};
/// `needs` is files_in of the state that is in a file: the row names the content that it needs.
std::string encode_checkpoint_row(const CheckpointRow& row, const Value& files);
Result<CheckpointRow> decode_checkpoint_row(std::string_view bytes);

}  // namespace flow
