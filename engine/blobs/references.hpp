// The blobs to which a value refers.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "flow/digest.hpp"
#include "flow/value.hpp"

namespace flow {

struct BlobInfo {
  Digest digest;
  std::optional<uint64_t> size;  // in bytes, if known
};

/// Blobs of at least this size are downloaded from other workers if possible, and workers report
/// that they have them.
constexpr uint64_t kLargeBytes = 256u << 10;

/// The blobs of the tensors and files in a value, each once. Tensors with an invalid shape are
/// skipped.
std::vector<BlobInfo> blobs_in(const Value& value);

}  // namespace flow
