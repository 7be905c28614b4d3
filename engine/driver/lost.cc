// Results whose content the state does not hold any more: somebody removed it, or it was damaged.
#include <algorithm>
#include <set>

#include "engine/base/cbor.hpp"
#include "engine/cluster/content/needed.hpp"
#include "engine/core/graph.hpp"
#include "engine/driver/driver.hpp"

namespace flow {

namespace {

/// Of a unit's result, the units whose attempts came to it: a map's instances, a branch's tasks.
class Makers {
 public:
  explicit Makers(const core::Run& run) : run_(run) {}
  void add(core::UnitId unit) {
    if (run_.units[unit].dropped || !seen_.insert(unit).second) return;
    std::vector<core::UnitId> parts;
    if (core::is_map_unit(run_, unit)) {
      if (run_.units[unit].expanded) parts = core::instances_of(run_, unit);
    } else {
      std::vector<core::Edge> edges;
      core::result_edges(run_, unit, edges);
      for (const core::Edge& edge : edges) parts.push_back(edge.from);
    }
    if (parts.empty()) all.push_back(unit);
    for (core::UnitId part : parts) add(part);
  }

  std::vector<core::UnitId> all;

 private:
  const core::Run& run_;
  std::set<core::UnitId> seen_;
};

/// Who made what those took that failed for want of something.
std::vector<core::UnitId> makers_of_lacking(const core::Run& run) {
  Makers makers(run);
  core::EdgeReader reader(run);
  std::vector<core::Edge> edges;
  for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
    const core::Unit& u = run.units[unit];
    bool lacked_something = !u.dropped && u.status == core::UnitStatus::failed && u.extra &&
                            u.extra->failure.cause == core::Cause::staging;
    if (!lacked_something) continue;
    reader.before(unit, edges);
    for (const core::Edge& edge : edges) makers.add(edge.from);
    if (!u.expanded) continue;
    core::result_edges(run, unit, edges);
    for (const core::Edge& edge : edges) makers.add(edge.from);
  }
  std::erase_if(makers.all, [&](core::UnitId unit) {
    const core::Unit& u = run.units[unit];
    return u.status != core::UnitStatus::succeeded || u.result.is_zero();
  });
  return std::move(makers.all);
}

}  // namespace

bool Driver::holds_content_of(std::string_view bytes) {
  if (!holds_tag(bytes)) return true;
  auto value = decode_value(bytes);
  if (!value.ok()) return false;
  std::vector<cluster::Needed> needed = cluster::needed_in(*value);
  return std::all_of(needed.begin(), needed.end(), [this](const cluster::Needed& each) {
    return !each.origin.empty() || staged(each.content.digest) != nullptr ||
           blobs_.has(each.content.digest, *each.content.size);
  });
}

bool Driver::holds_result_of(const CacheEntry& entry) {
  if (entry.is_file && !blobs_.has(entry.result)) return false;
  if (!entry.has_content) return true;
  if (!entry.value.empty()) return holds_content_of(entry.value);
  auto bytes = content(entry.result);
  return bytes.ok() && holds_content_of(*bytes);
}

void Driver::drop_damaged(const RunId& id, const std::optional<core::State>& folded) {
  std::vector<Digest> all;
  inspect([&](const core::State& state, Resolver&) {
    const core::State& in = folded ? *folded : state;
    auto run = in.runs.find(id);
    if (run == in.runs.end()) return;
    for (core::UnitId unit : makers_of_lacking(run->second)) {
      const Digest& result = run->second.units[unit].result;
      all.push_back(result);
      auto bytes = content(result);
      auto value = bytes.ok() ? decode_value(*bytes) : Result<Value>(bytes.error());
      if (value.ok()) collect_blobs(*value, all);
    }
  });
  for (const Digest& digest : all) (void)blobs_.drop_if_damaged(digest);
}

std::vector<core::UnitId> Driver::lost_results(const core::Run& run) {
  std::vector<core::UnitId> units = makers_of_lacking(run);
  std::erase_if(units, [&](core::UnitId unit) {
    auto bytes = content(run.units[unit].result);
    return bytes.ok() && holds_content_of(*bytes);
  });
  return units;
}

}  // namespace flow
