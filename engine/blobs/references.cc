#include "engine/blobs/references.hpp"

#include <string>
#include <unordered_set>

#include "engine/value/value_blobs.hpp"

namespace flow {

std::vector<BlobInfo> blobs_in(const Value& value) {
  std::vector<BlobInfo> blobs;
  std::unordered_set<Digest, DigestHash> seen;
  for_each_blob(value, [&](const Digest& digest, std::optional<uint64_t> size, const std::string&) {
    if (size && seen.insert(digest).second) blobs.push_back({digest, size});
  });
  return blobs;
}

}  // namespace flow
