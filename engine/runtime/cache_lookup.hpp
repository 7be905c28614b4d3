// From cache keys to entries: entries that turns have staged, and those in the store.
#pragma once
#include <optional>
#include <vector>

#include "engine/runtime/commits.hpp"
#include "engine/store/store.hpp"

namespace flow {

/// What is looked up for one task instance.
struct CacheRequest {
  core::RunId run;
  core::UnitId unit = 0;
  Digest key;
  bool may_hit = false;  // false: nothing is looked up
  std::optional<CacheEntry> entry{};
};

/// Used by the turn's thread, or by the only thread of a reader, whose `commits` are empty.
class CacheLookup {
 public:
  CacheLookup(const Store& store, const Commits& commits) : store_(store), commits_(commits) {}

  /// Fills in the entries. One read of the store for all requests.
  Status look_up(std::vector<CacheRequest>& requests) const;
  Result<std::optional<CacheEntry>> find(const Digest& key) const;
  /// Whether the task instance may take this entry. Its blobs may be gone all the same.
  static bool may_hit(const core::Run& run, core::UnitId unit, const CacheEntry& entry);

 private:
  const Store& store_;
  const Commits& commits_;
};

}  // namespace flow
