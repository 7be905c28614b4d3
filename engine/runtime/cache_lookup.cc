#include "engine/runtime/cache_lookup.hpp"

#include <string>
#include <utility>

#include "engine/store/row_keys.hpp"

namespace flow {

Status CacheLookup::look_up(std::vector<CacheRequest>& requests) const {
  std::vector<CacheRequest*> unstaged;
  std::vector<std::string> names;
  for (CacheRequest& request : requests) {
    if (!request.may_hit) continue;
    for (const Commit* commit : {&commits_.open, &commits_.in_flight}) {
      auto entry = commit->cached.find(request.key);
      if (entry == commit->cached.end()) continue;
      request.entry = entry->second;
      break;
    }
    if (!request.entry) {
      unstaged.push_back(&request);
      names.push_back(cache_key(request.key));
    }
  }
  if (unstaged.empty()) return {};
  auto rows = store_.get_many(Family::cache, {names.begin(), names.end()});
  FLOW_TRY(rows);
  for (size_t i = 0; i < unstaged.size(); i++) {
    if (!(*rows)[i]) continue;
    auto entry = decode_cache_entry(*(*rows)[i]);
    if (entry.ok()) unstaged[i]->entry = std::move(*entry);
  }
  return {};
}

Result<std::optional<CacheEntry>> CacheLookup::find(const Digest& key) const {
  std::vector<CacheRequest> one(1);
  one[0].key = key;
  one[0].may_hit = true;
  FLOW_TRY(look_up(one));
  return std::move(one[0].entry);
}

bool CacheLookup::may_hit(const core::Run& run, core::UnitId unit, const CacheEntry& entry) {
  const TaskDef& def = *core::def_of(run, unit);
  if (entry.run == run.id) return true;
  if (run.fresh) return false;
  if (def.cache_written) return true;
  if (entry.has_wait) return false;
  // A shell task whose result nothing takes runs for its effect: a deploy must deploy.
  bool is_for_effect =
      def.kind == TaskKind::shell && def.shell.outputs.empty() && !core::has_consumers(run, unit);
  return !is_for_effect;
}

}  // namespace flow
