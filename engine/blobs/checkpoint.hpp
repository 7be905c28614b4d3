// The format of checkpoints. A state with tensors is a safetensors file: each tensor under its path
// in the state ("model.1.weight"), everything else in the metadata, so that other programs can read
// the tensors. A state without tensors is a value in its database row; for a file the row has the
// path and the digest.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/blobs/safetensors.hpp"
#include "flow/value.hpp"

namespace flow {

/// The content of a checkpoint file: its header, followed by these bytes.
struct CheckpointFile {
  std::string head;
  std::vector<Bytes> tensors;
};

bool holds_tensors(const Value& state);
/// The list of files and folders in a state.
Value files_in(const Value& state);
/// Converts a state, whose tensors must have their bytes, to a file. The error names what is too
/// large.
Result<CheckpointFile> flatten_checkpoint(const Value& state);
/// Reads the state from a file; its tensors are parts of `content`. The error says what is invalid.
Result<Value> unflatten_checkpoint(const Bytes& content);

/// The step of the last point of each metric that the attempt had reported.
using MetricSteps = std::map<std::string, int64_t>;

/// The row in the database: the state itself, or the path of its file.
struct CheckpointRow {
  std::optional<Value> state;
  std::string file;  // path relative to the state directory
  Digest digest;     // of the file
  MetricSteps metric_steps{};
};
/// `files`: files_in() of the state, if it is in a file, so that the row lists the blobs that it
/// refers to.
std::string encode_checkpoint_row(const CheckpointRow& row, const Value& files);
Result<CheckpointRow> decode_checkpoint_row(std::string_view bytes);

}  // namespace flow
