#include "engine/runtime/missing_results.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/core/graph.hpp"
#include "engine/runs/state_references.hpp"

namespace flow {

namespace {

/// The units that produce what other units take: the instances of a map, the tasks of a branch.
class Producers {
 public:
  /// Producers for the units that failed because an input was missing.
  explicit Producers(const core::Run& run) : run_(run), reader_(run) {
    for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
      const core::Unit& u = run.units[unit];
      bool has_missing_input = !u.dropped && u.status == core::UnitStatus::failed && u.detail &&
                               u.detail->failure.cause == core::Cause::staging;
      if (!has_missing_input) continue;
      failed_consumers.push_back(unit);
      add_of(unit);
    }
  }
  /// And for this unit. An instance may take an input from the map's list, and the call of a
  /// dynamic task may take it from the arguments of that task.
  void add_of(core::UnitId unit) {
    if (!consumers_.insert(unit).second) return;
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
      if (unit < calls.first_unit || unit - calls.first_unit >= count) continue;
      add_calls_of(calls.unit);
      add_of(calls.unit);
    }
  }

  std::vector<core::UnitId> failed_consumers;
  std::vector<core::UnitId> all;      // producers that succeeded, and lists made of their results
  std::vector<core::UnitId> dynamic;  // tasks whose calls refer to inputs of the consumers

 private:
  void add_calls_of(core::UnitId unit) {
    bool has_calls =
        !run_.units[unit].dropped && run_.units[unit].expanded && run_.dynamic_of.contains(unit);
    if (has_calls && dynamic_seen_.insert(unit).second) dynamic.push_back(unit);
  }
  void add(core::UnitId unit) {
    const core::Unit& u = run_.units[unit];
    if (u.dropped || !seen_.insert(unit).second) return;
    add_calls_of(unit);
    std::vector<core::UnitId> parts;
    if (core::is_map_unit(run_, unit)) {
      if (u.expanded) parts = core::instances_of(run_, unit);
    } else {
      std::vector<core::Edge> edges;
      core::result_edges(run_, unit, edges);
      for (const core::Edge& edge : edges) parts.push_back(edge.from);
    }
    for (core::UnitId part : parts) add(part);
    bool is_produced = u.status == core::UnitStatus::succeeded && !u.result.is_zero() &&
                       core::has_consumers(run_, unit);
    if (is_produced) all.push_back(unit);
  }

  const core::Run& run_;
  core::EdgeReader reader_;
  std::set<core::UnitId> consumers_, seen_, dynamic_seen_;
};

/// The newest calls of an expanded dynamic task.
const core::DynamicCalls& calls_of(const core::Run& run, core::UnitId unit) {
  return run.dynamics[run.dynamic_of.at(unit)];
}

}  // namespace

// A missing result is computed again from the inputs of its producer, so these are verified too.
void MissingResults::drop_damaged(const core::RunId& id,
                                  const std::optional<core::State>& archived) {
  std::set<Digest> seen;
  std::vector<Digest> unread;
  do {
    unread.clear();
    inbox_.post_and_wait({StoreCallback{[&](Batch&, core::State& state) {
      const core::State& in = archived ? *archived : state;
      auto run = in.runs.find(id);
      if (run == in.runs.end()) return;
      Producers producers(run->second);
      Outputs missing = find(run->second);
      for (core::UnitId unit : missing.results) producers.add_of(unit);
      for (core::UnitId unit : missing.calls) producers.add_of(unit);
      References all([this](const Digest& digest) { return blobs_.read(digest); });
      for (core::UnitId unit : producers.failed_consumers) {
        auto arguments = resolver_.arguments(run->second, unit);
        if (arguments.ok()) all.add_encoded(*arguments);
      }
      for (core::UnitId unit : producers.all) all.add_stored(run->second.units[unit].result);
      for (core::UnitId unit : producers.dynamic) all.add(*calls_of(run->second, unit).fragment);
      for (const auto& [digest, blob] : all.blobs())
        if (seen.insert(digest).second) unread.push_back(digest);
    }}});
    for (const Digest& digest : unread) (void)stored_.drop_if_damaged(digest);
  } while (!unread.empty());
}

MissingResults::Outputs MissingResults::find(const core::Run& run) const {
  Producers producers(run);
  Outputs missing;
  auto read = [this](const Digest& digest) { return blobs_.read(digest); };
  size_t results = 0, calls = 0;
  while (results < producers.all.size() || calls < producers.dynamic.size()) {
    References needed(read);
    bool is_calls = calls < producers.dynamic.size();
    core::UnitId unit = is_calls ? producers.dynamic[calls++] : producers.all[results++];
    if (is_calls)
      needed.add(*calls_of(run, unit).fragment);
    else
      needed.add_stored(run.units[unit].result);
    if (blobs_.has_all(needed)) continue;
    (is_calls ? missing.calls : missing.results).push_back(unit);
    // A when keeps its branch: its value is gathered again without its condition.
    if (run.node(run.units[unit].node).kind != NodeKind::when) producers.add_of(unit);
  }
  return missing;
}

// As `flow retry` does for one task, and the run is stopped in the same turn: no task of it starts
// before all that is missing is known.
Status MissingResults::rerun_dynamic_tasks(const core::RunId& id, Outputs& missing) {
  for (core::UnitId unit : missing.calls) {
    inbox_.post_and_wait({StoreCallback{[this, id, unit](Batch&, core::State&) {
      // Rejected if the calls of another task included it.
      bool is_rerun =
          recorder_.record_if_admitted(core::RetryRequested{id, true, unit}, recorder_.turn_time());
      if (is_rerun) recorder_.record_if_admitted(core::StopRequested{id}, recorder_.turn_time());
    }}});
    if (auto error = stop_.get()) return *error;
  }
  inbox_.post_and_wait({StoreCallback{[&](Batch&, core::State& state) {
    auto run = state.runs.find(id);
    if (run == state.runs.end()) return;
    std::erase_if(missing.results, [&](core::UnitId unit) {
      const core::Unit& u = run->second.units[unit];
      return u.dropped || u.status != core::UnitStatus::succeeded;
    });
  }}});
  if (auto error = stop_.get()) return *error;
  return {};
}

}  // namespace flow
