// The bytes that were sent between machines for each attempt: a blob counts for the first attempt
// that refers to it after it arrived.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "engine/cluster/transfer/blob_references.hpp"

namespace flow::cluster {

/// Thread-safe.
class ArrivedBlobs {
 public:
  /// A blob was downloaded.
  void add(const Digest& blob, uint64_t bytes);
  /// The bytes of the blobs in the list that have arrived and have not been claimed.
  int64_t claim(const std::vector<BlobReference>& references);

 private:
  std::mutex mutex_;
  // Not yet claimed; at most kUnclaimedMax, because the order for which a blob was may be stopped.
  std::map<Digest, uint64_t> bytes_;
};

}  // namespace flow::cluster
