// Which content an order or a report names that does not travel with it: what has to come to a
// worker before an attempt begins, and to the head before a result is committed.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "engine/cluster/transfer/blob_cache.hpp"
#include "engine/worker/worker.hpp"

namespace flow::cluster {

struct BlobReference {
  BlobInfo blob;
  std::string origin;  // where the head reads it in place; "" for what is under objects/
  std::string file;    // of a checkpoint's: its place below either side's folder, else ""
};

/// Of what the head itself made up.
std::vector<BlobReference> referenced_blobs(const AttemptOrder& order);
/// The Error says what is wrong with a report.
Result<std::vector<BlobReference>> referenced_blobs(const Report& report);

/// The same arguments for a machine that has not what is read in place here: by content alone.
std::string without_origins(std::string_view args);

}  // namespace flow::cluster
