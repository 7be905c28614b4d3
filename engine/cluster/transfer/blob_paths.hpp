// Blobs outside objects/: inputs that the head reads in place, and checkpoints.
#pragma once
#include <string>
#include <vector>

#include "engine/cluster/transfer/blob_references.hpp"

namespace flow::cluster {

/// The pin owner of an attempt, or of one of its ranks.
std::string owner_of(const RankId& id);

/// Lends the references that have a path outside objects/ until the attempt's blobs are unpinned.
void lend(BlobCache& store, const RankId& id, const std::vector<BlobReference>& references);

/// Links a downloaded checkpoint to its path, `reference.file`, durably. The caller has called
/// will_place() and must call was_placed(). Returns the other files of the folder; they are garbage
/// once the row that names this checkpoint is committed.
Result<std::vector<std::string>> place_checkpoint(BlobCache& store, const BlobReference& reference);

}  // namespace flow::cluster
