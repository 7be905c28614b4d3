// Which blobs a value refers to.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "flow/digest.hpp"
#include "flow/value.hpp"

namespace flow {

struct BlobInfo {
  Digest digest;
  std::optional<uint64_t> size;  // in bytes, where it is known
};

/// From this size on workers fetch a blob from the nearest worker that has it, and report that they
/// have it.
constexpr uint64_t kLargeBytes = 256u << 10;

/// The blobs of the tensors and files in a value, each once. A tensor whose shape is damaged is
/// left out.
std::vector<BlobInfo> blobs_in(const Value& value);

}  // namespace flow
