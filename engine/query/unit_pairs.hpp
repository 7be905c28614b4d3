// Which units of two runs of a pipeline are the same task.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "engine/core/core.hpp"
#include "engine/runs/input_resolver.hpp"

namespace flow {

/// Nodes are paired by name. Instances of a map are paired by tag; where a run has no tags, by an
/// equal key, then by an equal item, and the others by index. An item that was added or removed
/// thus does not pair the instances after it with those of other items.
class UnitPairs {
 public:
  /// `has_tags`: false if the tags that a function gives the instances of `now` are not known.
  UnitPairs(const core::Run& before, const core::Run& now, InputResolver& resolver,
            bool has_tags = true);

  /// The unit of the run `before`; kNoNode if there is none.
  core::UnitId before(core::UnitId now) const { return of_now_[now]; }

 private:
  using Names = std::vector<std::pair<std::string, core::UnitId>>;

  void pair_by_name(const Names& before, const Names& now);
  void pair(core::UnitId before, core::UnitId now);
  void pair_instances(const std::vector<core::UnitId>& before,
                      const std::vector<core::UnitId>& now);
  std::string tag_of_now(core::UnitId unit) const;
  std::string item_of(const core::Run& run, core::UnitId unit);

  const core::Run& before_;
  const core::Run& now_;
  InputResolver& resolver_;
  const bool has_tags_;
  std::vector<core::UnitId> of_now_;
  // Before and now: their instances and calls are not paired yet.
  std::vector<std::pair<core::UnitId, core::UnitId>> open_;
};

}  // namespace flow
