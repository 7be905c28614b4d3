// Content that the state does not hold any more: somebody removed it, or it was damaged.
#include <algorithm>
#include <set>

#include "engine/base/clock.hpp"
#include "engine/base/latch.hpp"
#include "engine/core/graph.hpp"
#include "engine/runs/state_references.hpp"
#include "engine/runtime/engine_loop.hpp"

namespace flow {

namespace {

/// The units whose attempts came to what others take: of a map its instances, of a branch its
/// tasks.
class Producers {
 public:
  /// Of what those take that failed for want of something.
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
  /// And of what this one takes. An instance may have it from the map's list, and the call of a
  /// dynamic task from that one's arguments.
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

  std::vector<core::UnitId> failed_consumers;  // those that failed
  std::vector<core::UnitId> all;  // makers, which succeeded, and what was put together of theirs
  std::vector<core::UnitId> dynamic;  // tasks whose calls refer to what those take

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
                       run_.node(u.node).kind != NodeKind::when && core::has_consumers(run_, unit);
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

bool EngineLoop::has_all(const References& needed) {
  if (!needed.unread().empty()) return false;
  return std::ranges::all_of(needed.blobs(), [this](const auto& each) {
    const auto& [digest, blob] = each;
    if (blob.is_in_place || staged(digest) != nullptr) return true;
    return blob.size ? blobs_.has(digest, *blob.size) : blobs_.has(digest);
  });
}

bool EngineLoop::is_missing_any(const References& needed) {
  bool is_lost = std::ranges::any_of(
      needed.unread(), [this](const Digest& digest) { return blobs_.check_unread(digest).ok(); });
  return is_lost || std::ranges::any_of(needed.blobs(), [this](const auto& each) {
           const auto& [digest, blob] = each;
           return !blob.is_in_place && staged(digest) == nullptr &&
                  blobs_.is_gone(digest, blob.size);
         });
}

bool EngineLoop::holds_result_of(const CacheEntry& entry) {
  bool is_gone = entry.is_file && !(entry.size > 0 ? blobs_.has(entry.result, entry.size)
                                                   : blobs_.has(entry.result));
  if (is_gone) return false;
  if (!entry.refers_to_blobs && !entry.has_fragment) return true;
  References needed([this](const Digest& digest) { return read_blob(digest); });
  needed.add(entry);
  return has_all(needed);
}

// What is lost is made anew from what its makers took: that is looked at too.
void EngineLoop::drop_damaged(const RunId& id, const std::optional<core::State>& archived) {
  std::set<Digest> seen;
  std::vector<Digest> unread;
  do {
    unread.clear();
    inspect([&](const core::State& state, InputResolver& resolver) {
      const core::State& in = archived ? *archived : state;
      auto run = in.runs.find(id);
      if (run == in.runs.end()) return;
      Producers producers(run->second);
      MissingOutputs missing = find_missing_outputs(run->second);
      for (core::UnitId unit : missing.results) producers.add_of(unit);
      for (core::UnitId unit : missing.calls) producers.add_of(unit);
      References all([this](const Digest& digest) { return read_blob(digest); });
      for (core::UnitId unit : producers.failed_consumers) {
        auto arguments = resolver.arguments(run->second, unit);
        if (arguments.ok()) all.add_encoded(*arguments);
      }
      for (core::UnitId unit : producers.all) all.add_stored(run->second.units[unit].result);
      for (core::UnitId unit : producers.dynamic) all.add(*calls_of(run->second, unit).fragment);
      for (const auto& [digest, blob] : all.blobs())
        if (seen.insert(digest).second) unread.push_back(digest);
    });
    for (const Digest& digest : unread) (void)blobs_.drop_if_damaged(digest);
  } while (!unread.empty());
}

EngineLoop::MissingOutputs EngineLoop::find_missing_outputs(const core::Run& run) {
  Producers producers(run);
  MissingOutputs missing;
  auto read = [this](const Digest& digest) { return read_blob(digest); };
  size_t results = 0, calls = 0;
  while (results < producers.all.size() || calls < producers.dynamic.size()) {
    References needed(read);
    bool is_calls = calls < producers.dynamic.size();
    core::UnitId unit = is_calls ? producers.dynamic[calls++] : producers.all[results++];
    if (is_calls)
      needed.add(*calls_of(run, unit).fragment);
    else
      needed.add_stored(run.units[unit].result);
    if (has_all(needed)) continue;
    (is_calls ? missing.calls : missing.results).push_back(unit);
    producers.add_of(unit);
  }
  return missing;
}

// As `flow retry` has one task run again, with the run put to rest in the same turn: nothing of it
// starts before all that is lost is known.
Status EngineLoop::rerun_dynamic_tasks(const RunId& id, MissingOutputs& missing) {
  for (core::UnitId unit : missing.calls) {
    auto latch = std::make_shared<Latch>();
    Input input;
    input.has_event = false;
    input.control = [this, id, unit](Batch&, core::State& state) {
      core::Event rerun = core::RetryRequested{id, true, unit};
      if (!core::admit(state, rerun)) return;  // it went with the calls of another one
      record(std::move(rerun), clock_.now());
      core::Event stop = core::StopRequested{id};
      if (core::admit(state, stop)) record(std::move(stop), clock_.now());
    };
    input.done = [latch](bool decided) { latch->open(decided); };
    post(std::move(input));
    latch->wait();
    if (auto error = stopped_by()) return *error;
  }
  inspect([&](const core::State& state, InputResolver&) {
    auto run = state.runs.find(id);
    if (run == state.runs.end()) return;
    std::erase_if(missing.results, [&](core::UnitId unit) {
      const core::Unit& u = run->second.units[unit];
      return u.dropped || u.status != core::UnitStatus::succeeded;
    });
  });
  if (auto error = stopped_by()) return *error;
  return {};
}

}  // namespace flow
