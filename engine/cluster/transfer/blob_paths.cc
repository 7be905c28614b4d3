#include "engine/cluster/transfer/blob_paths.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

namespace flow::cluster {

namespace fs = std::filesystem;

std::string owner_of(const RankId& id) {
  const core::AttemptId& of = id.attempt;
  return fmt::format("{} {} {} {} {}", of.run, of.unit, of.attempt, of.epoch, id.rank);
}

void lend(BlobCache& store, const RankId& id, const std::vector<BlobReference>& references) {
  for (const BlobReference& each : references) {
    if (!each.origin.empty()) store.lend(owner_of(id), each.blob.digest, each.origin, true);
    if (!each.file.empty())
      store.lend(owner_of(id), each.blob.digest, store.dir() + "/" + each.file, false);
  }
}

Result<std::vector<std::string>> place_checkpoint(BlobCache& store,
                                                  const BlobReference& reference) {
  fs::path target = store.dir() + "/" + reference.file;
  FLOW_TRY(store.link_to(reference.blob.digest, reference.file));
  std::vector<std::string> others;
  std::error_code failed;
  for (fs::directory_iterator at(target.parent_path(), failed), end; !failed && at != end;
       at.increment(failed))
    if (at->path() != target) others.push_back(at->path().string());
  return others;
}

}  // namespace flow::cluster
