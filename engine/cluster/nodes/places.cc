#include "engine/cluster/nodes/places.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

namespace flow::cluster {

namespace fs = std::filesystem;

std::string owner_of(const core::AttemptId& id) {
  return fmt::format("{} {} {} {}", id.run, id.unit, id.attempt, id.epoch);
}

void lend(ContentStore& store, const core::AttemptId& id, const std::vector<Needed>& needed) {
  for (const Needed& each : needed) {
    if (!each.origin.empty()) store.lend(owner_of(id), each.content.digest, each.origin, true);
    if (!each.file.empty())
      store.lend(owner_of(id), each.content.digest, store.dir() + "/" + each.file, false);
  }
}

Result<std::vector<std::string>> place_checkpoint(ContentStore& store, const Needed& needed) {
  FLOW_TRY(store.link_to(needed.content.digest, needed.file));
  ::unlink(store.path_of(needed.content.digest).c_str());
  fs::path target = store.dir() + "/" + needed.file;
  std::vector<std::string> others;
  std::error_code failed;
  for (fs::directory_iterator at(target.parent_path(), failed), end; !failed && at != end;
       at.increment(failed))
    if (at->path() != target) others.push_back(at->path().string());
  return others;
}

}  // namespace flow::cluster
