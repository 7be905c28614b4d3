// Results whose content the state does not hold any more: somebody removed it, or it was damaged.
#include <algorithm>
#include <set>

#include "engine/base/cbor.hpp"
#include "engine/cluster/content/needed.hpp"
#include "engine/core/graph.hpp"
#include "engine/driver/driver.hpp"

namespace flow {

namespace {

/// The units whose attempts came to what others take: of a map its instances, of a branch its
/// tasks.
class Makers {
 public:
  /// Of what those take that failed for want of something.
  explicit Makers(const core::Run& run) : run_(run), reader_(run) {
    for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
      const core::Unit& u = run.units[unit];
      bool lacked_something = !u.dropped && u.status == core::UnitStatus::failed && u.extra &&
                              u.extra->failure.cause == core::Cause::staging;
      if (!lacked_something) continue;
      lacking.push_back(unit);
      add_of(unit);
    }
  }
  /// And of what this one takes. An instance may have it from the map's list, and the call of a
  /// dynamic task from that one's arguments.
  void add_of(core::UnitId unit) {
    if (!taking_.insert(unit).second) return;
    std::vector<core::Edge> edges;
    reader_.before(unit, edges);
    for (const core::Edge& edge : edges) add(edge.from);
    const core::Unit& u = run_.units[unit];
    if (u.expanded) {
      core::result_edges(run_, unit, edges);
      for (const core::Edge& edge : edges) add(edge.from);
    }
    if (u.instance >= 0) return add_of(run_.unit_of(u.node));
    for (const core::DynamicCalls& calls : run_.dynamics) {
      size_t count = calls.fragment ? calls.fragment->nodes.size() : 0;
      if (unit >= calls.first_unit && unit - calls.first_unit < count) add_of(calls.unit);
    }
  }

  std::vector<core::UnitId> lacking;  // those that failed
  std::vector<core::UnitId> all;  // makers, which succeeded, and what was put together of theirs

 private:
  void add(core::UnitId unit) {
    const core::Unit& u = run_.units[unit];
    if (u.dropped || !seen_.insert(unit).second) return;
    std::vector<core::UnitId> parts;
    if (core::is_map_unit(run_, unit)) {
      if (u.expanded) parts = core::instances_of(run_, unit);
    } else {
      std::vector<core::Edge> edges;
      core::result_edges(run_, unit, edges);
      for (const core::Edge& edge : edges) parts.push_back(edge.from);
    }
    for (core::UnitId part : parts) add(part);
    bool is_made = u.status == core::UnitStatus::succeeded && !u.result.is_zero() &&
                   run_.node(u.node).kind != NodeKind::when && core::has_data_takers(run_, unit);
    if (is_made) all.push_back(unit);
  }

  const core::Run& run_;
  core::EdgeReader reader_;
  std::set<core::UnitId> taking_, seen_;
};

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
  bool is_gone = entry.is_file && !(entry.size > 0 ? blobs_.has(entry.result, entry.size)
                                                   : blobs_.has(entry.result));
  if (is_gone) return false;
  if (!entry.has_content) return true;
  if (!entry.value.empty()) return holds_content_of(entry.value);
  auto bytes = content(entry.result);
  return bytes.ok() && holds_content_of(*bytes);
}

// What is lost is made anew from what its makers took: that is looked at too.
void Driver::drop_damaged(const RunId& id, const std::optional<core::State>& folded) {
  std::set<Digest> seen;
  std::vector<Digest> unread;
  do {
    unread.clear();
    inspect([&](const core::State& state, Resolver& resolver) {
      const core::State& in = folded ? *folded : state;
      auto run = in.runs.find(id);
      if (run == in.runs.end()) return;
      Makers makers(run->second);
      for (core::UnitId lost : lost_results(run->second)) makers.add_of(lost);
      std::vector<Digest> all;
      auto add_value = [&](const Result<std::string>& bytes) {
        auto value = bytes.ok() ? decode_value(*bytes) : Result<Value>(bytes.error());
        if (value.ok()) collect_blobs(*value, all);
      };
      for (core::UnitId unit : makers.lacking) add_value(resolver.arguments(run->second, unit));
      for (core::UnitId unit : makers.all) {
        all.push_back(run->second.units[unit].result);
        add_value(content(all.back()));
      }
      for (const Digest& digest : all)
        if (seen.insert(digest).second) unread.push_back(digest);
    });
    for (const Digest& digest : unread) (void)blobs_.drop_if_damaged(digest);
  } while (!unread.empty());
}

std::vector<core::UnitId> Driver::lost_results(const core::Run& run) {
  Makers makers(run);
  std::vector<core::UnitId> lost;
  for (size_t i = 0; i < makers.all.size(); i++) {
    core::UnitId unit = makers.all[i];
    auto bytes = content(run.units[unit].result);
    if (bytes.ok() && holds_content_of(*bytes)) continue;
    lost.push_back(unit);
    makers.add_of(unit);
  }
  return lost;
}

}  // namespace flow
