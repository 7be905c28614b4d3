// Content that lies elsewhere than under objects/: what the head reads in place, and checkpoints.
#pragma once
#include <string>
#include <vector>

#include "engine/cluster/transfer/blob_references.hpp"

namespace flow::cluster {

/// Who pins an attempt's content, or a rank's, in a store.
std::string owner_of(const RankId& id);

/// Until the attempt's content is unpinned, of these what lies elsewhere is given from there.
void lend(BlobCache& store, const RankId& id, const std::vector<BlobReference>& references);

/// A checkpoint that was fetched, of which will_place was told before, is at its place,
/// `needed.file`, durably. was_placed() is the caller's.
/// Its folder's other files are returned: nothing names them once the row that names this is
/// committed.
Result<std::vector<std::string>> place_checkpoint(BlobCache& store, const BlobReference& reference);

}  // namespace flow::cluster
