// Advice for a run (<flow/cost.hpp>): collects what the runs of its pipeline measured.
#include <algorithm>
#include <set>

#include "engine/base/throwing.hpp"
#include "engine/core/gangs.hpp"
#include "engine/costs/advice.hpp"
#include "engine/query/key_changes.hpp"
#include "engine/query/reader_impl.hpp"
#include "engine/query/unit_pairs.hpp"
#include "flow/tags.hpp"

namespace flow {

namespace {

constexpr size_t kComparedMax = 20;  // runs before the run

bool has_run(const core::Unit& unit) {
  return unit.status == core::UnitStatus::succeeded && unit.attempts > 0 && !unit.cached &&
         !unit.dropped && unit.finished > unit.started;
}

double duration_of(const core::Unit& unit) {
  return static_cast<double>(unit.finished - unit.started) / 1000.0;
}

std::string task_name(const core::Run& run, core::UnitId unit) {
  return without_numbers(run.node(run.units[unit].node).name);
}

std::string worker_name(const LoadedRun& loaded, core::WorkerId at) {
  bool is_known = at > 0 && at < loaded.state->workers.size();
  return is_known ? loaded.state->workers[at].info.name : "local";
}

void add_samples(const LoadedRun& loaded, std::vector<AttemptSample>& samples) {
  const core::Run& run = *loaded.run;
  for (core::UnitId unit = 0; unit < run.units.size(); unit++) {
    const core::Unit& u = run.units[unit];
    const TaskDef* def = core::def_of(run, unit);
    if (!has_run(u) || def == nullptr || core::is_service(run, unit) || u.expanded) continue;
    AttemptSample& sample = samples.emplace_back();
    sample.run = run.id;
    sample.task = task_name(run, unit);
    sample.name = core::shown_name(run, unit);
    sample.worker = worker_name(loaded, u.worker);
    sample.is_of_map = u.instance >= 0;
    sample.ranks = u.detail ? static_cast<uint32_t>(u.detail->others.size()) + 1 : 1;
    sample.duration_s = duration_of(u);
    bool is_fixed = def->resource_functions == 0;
    if (is_fixed) sample.cpus = def->resources.cpus_milli / 1000.0;
    if (is_fixed) sample.memory_bytes = def->resources.memory_bytes;
    sample.cpu_s = core::times_of(run, unit).cpu_s;
    sample.peak_memory = core::totals_of(run, unit).peak_memory;
  }
}

/// Why tasks of one run did not use the results of the run before it. A task that gets the result
/// of another such task is left out: it follows from that one.
class MissFinder {
 public:
  MissFinder(const Blobs& blobs, const LoadedRun& now, const LoadedRun& before)
      : now_(*now.run),
        before_(*before.run),
        resolver_([&blobs](const Digest& digest) { return blobs.get(digest); }),
        pairs_(before_, now_, resolver_) {}

  void add_to(std::vector<KeyMiss>& misses) {
    std::set<uint32_t> missed;  // nodes
    for (core::UnitId unit = 0; unit < now_.units.size(); unit++)
      if (is_miss(unit)) missed.insert(now_.units[unit].node);
    for (core::UnitId unit = 0; unit < now_.units.size(); unit++) {
      if (!is_miss(unit) || follows(unit, missed)) continue;
      KeyMiss miss = miss_of(unit);
      if (!miss.causes.empty()) misses.push_back(std::move(miss));
    }
  }

 private:
  bool is_miss(core::UnitId unit) const {
    const core::Unit& u = now_.units[unit];
    core::UnitId other = pairs_.before(unit);
    if (!has_run(u) || u.key.is_zero() || other == kNoNode) return false;
    const core::Unit& former = before_.units[other];
    return former.status == core::UnitStatus::succeeded && !former.key.is_zero() &&
           former.key != u.key;
  }

  bool follows(core::UnitId unit, const std::set<uint32_t>& missed) const {
    auto needs = data_dependencies(now_.node(now_.units[unit].node));
    return std::ranges::any_of(needs, [&](uint32_t node) { return missed.contains(node); });
  }

  KeyMiss miss_of(core::UnitId unit) {
    KeyMiss miss;
    core::UnitId other = pairs_.before(unit);
    const TaskDef *def = core::def_of(now_, unit), *former = core::def_of(before_, other);
    auto parts = resolver_.key_components(now_, unit);
    auto former_parts = resolver_.key_components(before_, other);
    if (def == nullptr || former == nullptr || !parts.ok() || !former_parts.ok()) return miss;
    std::vector<KeyChange> changes = key_changes({*former_parts, *former}, {*parts, *def});
    for (const KeyChange& change : changes) miss.causes.push_back(change.cause);
    std::ranges::sort(miss.causes);
    auto same = std::ranges::unique(miss.causes);
    miss.causes.erase(same.begin(), same.end());
    miss.text = joined_texts(changes);
    miss.run = now_.id;
    miss.task = task_name(now_, unit);
    miss.name = core::shown_name(now_, unit);
    miss.duration_s = duration_of(now_.units[unit]);
    return miss;
  }

  const core::Run &now_, &before_;
  InputResolver resolver_;
  UnitPairs pairs_;
};

}  // namespace

AdviceReport advise(const EngineOptions& options, const std::string& selector) {
  OpenedRun opened = open_run(options, selector);
  std::vector<LoadedRun> runs;  // newest first
  runs.push_back(std::move(opened.loaded));
  const RunRecord newest = runs[0].record;
  std::vector<RunRecord> records = value_or_throw(all_records(*opened.store));
  for (auto record = records.rbegin(); record != records.rend() && runs.size() <= kComparedMax;
       ++record) {
    if (record->id >= newest.id || record->pipeline != newest.pipeline) continue;
    auto loaded = load_run(*opened.store, *opened.blobs, *record);
    if (loaded.ok() && loaded->run != nullptr) runs.push_back(std::move(*loaded));
  }
  std::vector<AttemptSample> samples;
  std::vector<KeyMiss> misses;
  for (const LoadedRun& run : runs) add_samples(run, samples);
  for (size_t i = 0; i + 1 < runs.size(); i++)
    MissFinder(*opened.blobs, runs[i], runs[i + 1]).add_to(misses);
  return {newest.id, static_cast<uint32_t>(runs.size()), static_cast<uint32_t>(samples.size()),
          advice_of(samples, misses)};
}

}  // namespace flow
