// The blobs to which an order or a report refers without containing them: a worker downloads them
// before an attempt begins, and the head before a result is committed.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "engine/cluster/transfer/blob_cache.hpp"
#include "engine/worker/worker.hpp"

namespace flow::cluster {

struct BlobReference {
  BlobInfo blob;
  std::string origin;  // path if the head reads it in place; "" for a blob under objects/
  std::string file;    // of a checkpoint: its path below either side's folder, else ""
};

/// References of an order; orders come from the head itself and are trusted.
std::vector<BlobReference> referenced_blobs(const AttemptOrder& order);
/// References of a report; the error says what is invalid.
Result<std::vector<BlobReference>> referenced_blobs(const Report& report);

/// The same arguments without origins, for a machine that cannot read those paths.
std::string without_origins(std::string_view args);

}  // namespace flow::cluster
