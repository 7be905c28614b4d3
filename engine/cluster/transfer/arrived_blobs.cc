#include "engine/cluster/transfer/arrived_blobs.hpp"

namespace flow::cluster {

namespace {
constexpr size_t kUnclaimedMax = 65'536;
}

void ArrivedBlobs::add(const Digest& blob, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes_.size() >= kUnclaimedMax) bytes_.erase(bytes_.begin());
  bytes_[blob] = bytes;
}

int64_t ArrivedBlobs::claim(const std::vector<BlobReference>& references) {
  if (references.empty()) return 0;
  std::lock_guard lock(mutex_);
  uint64_t claimed = 0;
  for (const BlobReference& each : references) {
    auto arrived = bytes_.find(each.blob.digest);
    if (arrived == bytes_.end()) continue;
    claimed += arrived->second;
    bytes_.erase(arrived);
  }
  return static_cast<int64_t>(claimed);
}

}  // namespace flow::cluster
